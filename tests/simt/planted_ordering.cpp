// Blocks that hand data to other blocks of their launch, by tickets and flags, and ways to get it
// wrong.
#include "device/tickets.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

struct RelayArgs {
    Global<uint32_t> counter;
    Global<uint32_t> flag;
    Global<int> data;  // [256]
    Global<int> out;   // [256] for each ticket
};
struct RelayShared {
    TicketShared ticket;
};

enum class Relay {
    kRight,
    kHigherTicket,   // awaits what the last block will publish
    kNoAwait,        // reads what may not be there
    kEarlyPublish,   // publishes before the other threads of its block have met
    kEarlyRead,      // one thread awaits, the others read before they have met it
    kNothingToAwait  // nobody publishes
};

// The block with ticket 0 writes data; every block adds its ticket to it.
template <int W, Relay kRelay>
DSPARK_KERNEL(kThreads)
void relay(RelayArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(RelayShared, shared);
    const int t = thread_idx();
    const uint32_t ticket = block_take_ticket(args.counter, shared.ticket);
    const uint32_t last = static_cast<uint32_t>(grid_dim().x) - 1;
    const uint32_t producer = kRelay == Relay::kHigherTicket ? last : 0;
    if (ticket == producer) {
        args.data[t] = t;
        if (kRelay == Relay::kEarlyPublish) {
            if (t == 0) publish(args.flag, 1);
            sync_block();
        } else if (kRelay != Relay::kNothingToAwait) {
            block_publish(args.flag, 1);
        }
    } else if (kRelay == Relay::kEarlyRead) {
        if (t == 0) await(args.flag, 1);
    } else if (kRelay != Relay::kNoAwait) {
        block_await(args.flag, 1, 1);
    }
    args.out[ticket * kThreads + t] = args.data[t] + static_cast<int>(ticket);
}

// The block that arrives last adds up what all have written.
template <int W>
DSPARK_KERNEL(kThreads)
void sum_by_last(RelayArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(RelayShared, shared);
    const int t = thread_idx();
    const int blocks = grid_dim().x;
    const uint32_t place = block_take_ticket(args.counter, shared.ticket);
    args.out[place * kThreads + t] = t;
    const uint32_t arrived = block_arrive(args.flag, shared.ticket);
    if (static_cast<int>(arrived) + 1 != blocks) return;
    int sum = 0;
    for (int block = 0; block < blocks; ++block) sum += args.out[block * kThreads + t];
    args.data[t] = sum;
}

// Arrives before it has written.
template <int W>
DSPARK_KERNEL(kThreads)
void arrive_early(RelayArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(RelayShared, shared);
    const int t = thread_idx();
    const int blocks = grid_dim().x;
    const uint32_t place = block_take_ticket(args.counter, shared.ticket);
    args.out[place * kThreads + t] = t;
    if (static_cast<int>(place) + 1 != blocks) return;
    int sum = 0;
    for (int block = 0; block < blocks; ++block) sum += args.out[block * kThreads + t];
    args.data[t] = sum;
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

constexpr int kBlocks = 5;

struct Run {
    int code;
    bool out;   // out[ticket][t] == t + ticket
    bool data;  // data[t] == 5 t
};

Run run_relay(void (*kernel)(RelayArgs), int flags = emulator::kReadWrite) {
    DeviceVector<uint32_t> counter("counter", 1, flags);
    DeviceVector<uint32_t> flag("flag", 1);
    DeviceVector<int> data("data", kBlock);
    DeviceVector<int> out("out", kBlocks * kBlock);
    const RelayArgs args = {counter.data(), flag.data(), data.data(), out.data()};
    const int code = launch("relay", kernel, {kBlocks, 1, 1}, kBlock, nullptr, args);
    return {code,
            all_of(kBlocks * kBlock, [&](int i) { return out[i] == i % kBlock + i / kBlock; }),
            all_of(kBlock, [&](int t) { return data[t] == kBlocks * t; })};
}

#define DSPARK_PLANTED(Name, name, kernel, member, ...)     \
    struct Name {                                           \
        static constexpr const char* kName = name;          \
        template <int W>                                    \
        static Outcome run() {                              \
            const Run run = run_relay(kernel, __VA_ARGS__); \
            return {run.code, run.member};                  \
        }                                                   \
    };

DSPARK_PLANTED(RelayRight, "relay", (relay<W, Relay::kRight>), out, 0)
DSPARK_PLANTED(AwaitHigher, "await_higher_ticket", (relay<W, Relay::kHigherTicket>), out, 0)
DSPARK_PLANTED(NoAwait, "read_without_await", (relay<W, Relay::kNoAwait>), out, 0)
DSPARK_PLANTED(EarlyPublish, "early_publish", (relay<W, Relay::kEarlyPublish>), out, 0)
DSPARK_PLANTED(EarlyRead, "early_read", (relay<W, Relay::kEarlyRead>), out, 0)
DSPARK_PLANTED(NothingToAwait, "nothing_to_await", (relay<W, Relay::kNothingToAwait>), out, 0)
DSPARK_PLANTED(UnclearedCounter, "uncleared_counter", (relay<W, Relay::kRight>), out,
               emulator::kUninitialised)
DSPARK_PLANTED(SumByLast, "sum_by_last", sum_by_last<W>, data, 0)
DSPARK_PLANTED(ArriveEarly, "arrive_early", arrive_early<W>, data, 0)

}  // namespace

std::vector<Case> ordering_cases() {
    return {make_case<RelayRight>(),       make_case<AwaitHigher>(), make_case<NoAwait>(),
            make_case<EarlyPublish>(),     make_case<EarlyRead>(),   make_case<NothingToAwait>(),
            make_case<UnclearedCounter>(), make_case<SumByLast>(),   make_case<ArriveEarly>()};
}

}  // namespace dspark::planted
