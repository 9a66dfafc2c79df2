"""The training of a draft head on text sampled from its target: docs/training.md.

Every anchor is a response token at position P. The head sees features of positions before P and must
predict the K tokens after it; the target's distributions are rebuilt from its stored hidden rows, so
training never runs the target.

settings       what a run is made of, checked
samples        rows on disk, and the batch of a step
attention      blocks of many anchors over the context of their row
trainees       the flavours: rows of a batch -> what their heads read; files
start          first weights, draft vocabulary
loss           cross entropy, total variation, KL, in chunks; confidence
optimizers     Muon and AdamW, their state as tensors
checkpoints    one file, written whole or not at all
report         progress bar, log, summary
evaluation     teacher-forced acceptance, and the greedy walk
interrupt      a Ctrl-C that ends a loop cleanly
loop           all of it, step by step
"""
