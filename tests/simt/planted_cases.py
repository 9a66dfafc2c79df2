"""The planted kernels of this folder and what the emulator must say of them."""

WARP_SIZES = (4, 32, 64)
SEEDS = tuple(range(7))

# Error codes of csrc/backends/simt/emulator.h.
OUT_OF_BOUNDS, UNALIGNED, STORE_READ_ONLY, UNINITIALISED_READ, RACE = 1, 2, 3, 4, 5
DIVERGENT_BARRIER, DIVERGENT_COLLECTIVE, DEADLOCK, WARP_SIZE, BAD_LANE, TRAP = 6, 7, 8, 9, 10, 11
UNFINISHED = 13

# Kernel: (code, what the report says).
BUGS = {
    "missing_barrier": (RACE, "shared memory: thread"),
    "narrow_barrier": (RACE, "shared memory: thread"),
    "missing_warp_barrier": (RACE, "shared memory: thread"),
    "shuffle_as_barrier": (RACE, "shared memory: thread"),
    "missing_second_barrier": (RACE, "shared memory: thread"),
    "reused_scratch_unordered": (RACE, "shared memory: thread"),
    "device_memory_race": (RACE, "of buffer 'out' (2048 bytes): thread"),
    "blocks_store_together": (RACE, "another block of this launch stores there"),
    "block_reads_other": (RACE, "another block of this launch"),
    "read_without_await": (RACE, "another block of this launch stores there"),
    "early_publish": (RACE, "another block of this launch stores there"),
    "early_read": (RACE, "another block of this launch stores there"),
    "arrive_early": (RACE, "another block of this launch stores there"),
    "await_higher_ticket": (DEADLOCK, "awaits the value 1 of a flag that is 0"),
    "nothing_to_await": (DEADLOCK, "awaits the value 1 of a flag that is 0"),
    "uncleared_counter": (UNINITIALISED_READ, "of buffer 'counter'"),
    "half_warp_sum": (DIVERGENT_COLLECTIVE, "128 threads wait for lanes of their warp"),
    "two_operations": (DIVERGENT_COLLECTIVE, "different warp operations"),
    "lane_leaves": (DIVERGENT_COLLECTIVE, "threads finished: 1"),
    "shuffle_against_barrier": (DIVERGENT_COLLECTIVE, "threads wait at sync_block"),
    "threads_leave": (
        DIVERGENT_BARRIER,
        "128 of 256 threads wait at sync_block, 128 have finished",
    ),
    "two_barriers": (DIVERGENT_BARRIER, "different sync_block calls"),
    "endless_wait": (DEADLOCK, "255 threads wait at sync_block"),
    "two_warp_sizes": (WARP_SIZE, "after code for warps of"),
    "shuffle_from_nowhere": (BAD_LANE, "lane, mask or delta"),
    "trap": (TRAP, "thread 77 "),
    "load_out_of_bounds": (
        OUT_OF_BOUNDS,
        "load of 4 bytes at byte 1020 of buffer 'from' (1020 bytes)",
    ),
    "store_out_of_bounds": (
        OUT_OF_BOUNDS,
        "store of 4 bytes at byte 1020 of buffer 'to' (1020 bytes)",
    ),
    "null_pointer": (OUT_OF_BOUNDS, "at a null pointer"),
    "shared_out_of_bounds": (OUT_OF_BOUNDS, "index 256 of an array of 256 in shared memory"),
    "shared_below_bounds": (OUT_OF_BOUNDS, "index -1 of an array of 256 in shared memory"),
    "unaligned": (UNALIGNED, "no multiple of 16"),
    "store_read_only": (STORE_READ_ONLY, "of buffer 'to'"),
    "unwritten_shared": (UNINITIALISED_READ, "byte 800 of shared memory"),
    "unwritten_workspace": (UNINITIALISED_READ, "byte 1020 of buffer 'to'"),
}

TWINS = (
    "block_barrier",
    "warp_barrier",
    "second_barrier",
    "reused_scratch",
    "device_memory_barrier",
    "blocks_store_apart",
    "relay",
    "sum_by_last",
    "warp_sum",
    "one_operation",
    "one_call",
    "no_lane_leaves",
    "no_thread_leaves",
    "one_barrier",
    "short_wait",
    "shuffle_from_last",
    "in_bounds",
    "aligned",
    "shared_in_bounds",
    "written_shared",
    "written_workspace",
    "collectives",
    "vocabulary",
)

# Races and reads of uninitialised shared memory are looked for at the full level only.
ONLY_FULL = {name for name, (code, _) in BUGS.items() if code == RACE} | {"unwritten_shared"}
