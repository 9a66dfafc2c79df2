// CPU kernels of the verify family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/verify/cpu.h"

#include <cstring>

#include "ops/verify/cpu_schedule.h"
#include "ops/verify/rows.h"

namespace dspark::DSPARK_ISA {

using namespace verify;

namespace {

template <class Admit>
void write_schedule(const ScheduleArgs& args, int32_t live, const Admit& admit) {
    int64_t units = 0;
    int32_t rows = 0;
    for (int32_t b = 0; b < args.batch; ++b) {
        Admission admission = {0, 0};
        args.query_start_loc[b] = rows;
        if (b < live) {
            admission = admit(args, b);
            units += kToken + admission.units;
            rows += admission.length + 1;
        }
        args.verify_lens[b] = admission.length;
    }
    args.query_start_loc[args.batch] = rows;
    args.num_rows[0] = rows;
    args.expected_tokens[0] = expected_tokens(units);
}

}  // namespace

void schedule(const ScheduleArgs& args) {
    const int32_t live = live_requests(args);
    if (args.mode == ScheduleMode::kUniform) {
        write_schedule(args, live, admit_uniformly(args, live));
    } else {
        write_schedule(args, live, admit_in_order(args, live));
    }
}

namespace {

VerifyCheck check_layout(const RowLayout& layout, int64_t b, int64_t num_rows) {
    const int64_t begin = layout.query_start_loc[b];
    const int64_t end = layout.query_start_loc[b + 1];
    const int64_t most = layout.rows_per_request;
    if (b == 0 && begin != 0) return {VerifyFault::kRows, b, begin};
    if (end < begin) return {VerifyFault::kRows, b, end};
    if (most == 0 && end > num_rows) return {VerifyFault::kRows, b, end};
    if (most > 0 && end - begin > most) return {VerifyFault::kRowsPerRequest, b, end - begin};
    return {};
}

VerifyCheck check_request(const PackArgs& args, int64_t b) {
    const int64_t length = args.verify_lens[b];
    const int64_t begin = args.layout.query_start_loc[b];
    const int64_t end = args.layout.query_start_loc[b + 1];
    const int64_t position = args.seq_lens[b];
    if (length < 0 || length > args.num_drafts) return {VerifyFault::kLength, b, length};
    const VerifyCheck check = check_layout(args.layout, b, args.max_rows);
    if (check.fault != VerifyFault::kNone) return check;
    if (end == begin && length == 0) return {};  // does not exist
    if (end - begin != length + 1) return {VerifyFault::kRows, b, end};
    if (args.anchor[b] < 0) return {VerifyFault::kAnchor, b, args.anchor[b]};
    if (position < 0 || position > INT64_MAX - length - 1) {
        return {VerifyFault::kPosition, b, position};
    }
    for (int64_t i = 0; i <= length; ++i) {
        if (slot_of(args, b, position + i) < 0) return {VerifyFault::kBlock, b, position + i};
    }
    return {};
}

// Owners of rows asked for from 0 upwards, of a layout that check_layout has passed.
class RisingOwners {
  public:
    explicit RisingOwners(const RowLayout& layout) : layout_(layout) {}

    RowOwner ragged(int64_t row) {
        const int32_t* starts = layout_.query_start_loc;
        while (request_ + 1 < layout_.batch && starts[request_ + 1] <= row) ++request_;
        return ragged_row_of(layout_, request_, row);
    }
    RowOwner in_pass(int64_t row, RowOwner ragged) const {
        return layout_.rows_per_request == 0 ? ragged : padded_owner(layout_, row);
    }

  private:
    const RowLayout layout_;
    int64_t request_ = -1;
};

// Fills with copies of an element; bytes are a multiple of its size.
void fill_elements(char* to, int64_t bytes, const void* element, int64_t element_size) {
    if (bytes == 0) return;
    memcpy(to, element, static_cast<size_t>(element_size));
    for (int64_t done = element_size; done < bytes;) {
        const int64_t more = done < bytes - done ? done : bytes - done;
        memcpy(to + done, to, static_cast<size_t>(more));
        done += more;
    }
}

}  // namespace

VerifyCheck pack(const PackArgs& args) {
    for (int64_t b = 0; b < args.layout.batch; ++b) {
        const VerifyCheck check = check_request(args, b);
        if (check.fault != VerifyFault::kNone) return check;
    }
    RisingOwners owners(args.layout);
    for (int64_t row = 0; row < args.max_rows; ++row) {
        const RowOwner ragged = owners.ragged(row);
        pack_row(args, row, owners.in_pass(row, ragged));
        pack_sample_row(args, row, ragged);
    }
    return {};
}

// Requests begin .. end - 1.
void unpack(const UnpackArgs& args, int64_t begin, int64_t end) {
    const int64_t row_bytes = args.row_size * args.element_size;
    const char* rows = static_cast<const char*>(args.rows);
    for (int64_t entry = begin * (args.num_drafts + 1); entry < end * (args.num_drafts + 1);
         ++entry) {
        char* to = static_cast<char*>(args.block) + entry * row_bytes;
        const int64_t row =
            source_row(args, entry / (args.num_drafts + 1), entry % (args.num_drafts + 1));
        if (row < 0) {
            fill_elements(to, row_bytes, args.fill, args.element_size);
        } else {
            memcpy(to, rows + row * row_bytes, static_cast<size_t>(row_bytes));
        }
    }
}

VerifyCheck commit(const CommitArgs& args) {
    for (int64_t b = 0; b < args.layout.batch; ++b) {
        const VerifyCheck check = check_layout(args.layout, b, args.num_rows);
        if (check.fault != VerifyFault::kNone) return check;
        const int64_t rows = rows_of(args.layout, b);
        if (rows > 0 && (args.num_emitted[b] < 0 || args.num_emitted[b] > rows)) {
            return {VerifyFault::kEmitted, b, args.num_emitted[b]};
        }
        if (args.seq_lens[b] > INT64_MAX - rows) {
            return {VerifyFault::kPosition, b, args.seq_lens[b]};
        }
    }
    for (int64_t b = 0; b < args.layout.batch; ++b) commit_request(args, b);
    RisingOwners owners(args.layout);
    for (int64_t row = 0; row < args.num_rows; ++row) {
        commit_row(args, row, owners.in_pass(row, owners.ragged(row)));
    }
    return {};
}

VerifyCheck accumulate_stats(const AccumulateStatsArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t row = args.request_ids == nullptr ? b : args.request_ids[b];
        const int64_t length = args.verify_lens[b];
        if (row < 0) continue;
        if (row >= args.num_requests) return {VerifyFault::kSlot, b, row};
        if (length < 0 || length > args.num_drafts) return {VerifyFault::kLength, b, length};
        if (args.num_accepted[b] < 0 || args.num_accepted[b] > length) {
            return {VerifyFault::kAccepted, b, args.num_accepted[b]};
        }
    }
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t row = counter_row(args, b);
        if (row < 0) continue;
        for (int64_t j = 0; j <= args.num_drafts; ++j) count_position(args, row, b, j);
    }
    return {};
}

}  // namespace dspark::DSPARK_ISA
