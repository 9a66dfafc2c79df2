// The launch sequences of the draft family, declared once per device backend: each returns 0 or the
// vendor's error code of the first launch that failed, or kTooManyBlocks (launch_code.h).
#pragma once

#include "device/launch_code.h"
#include "ops/draft/workspace.h"

namespace dspark {

struct DraftLaunch {
    int (*markov_sample)(const draft::MarkovCall& call, LaunchTarget& target);
    // The logits of one draft: K = n = 1, nothing is drawn.
    int (*markov_logits)(const draft::MarkovCall& call, LaunchTarget& target);
    int (*row_statistics)(const RowStatisticsArgs& args, LaunchTarget& target);
    int (*draw_shard)(const DrawShardArgs& args, LaunchTarget& target);
    int (*confidence)(const ConfidenceArgs& args, LaunchTarget& target);
    int (*calibrate)(const CalibrateArgs& args, LaunchTarget& target);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const DraftLaunch& draft_launch();
}
