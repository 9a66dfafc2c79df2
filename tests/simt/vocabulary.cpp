// That Global and SharedArray can be used as the pointers and arrays they stand for.
#include "device/lanes.h"
#include "planted.h"

namespace dspark {

template <class From, class To>
constexpr bool kConverts = std::is_convertible_v<From, To>;

static_assert(sizeof(Global<void>) == sizeof(void*) && alignof(Global<int>) == alignof(int*));
static_assert(std::is_trivial_v<Global<float>> && std::is_trivial_v<SharedArray<float, 4>>);
static_assert(kConverts<float*, Global<float>> && kConverts<float*, Global<const float>>);
static_assert(kConverts<Global<float>, Global<const float>> &&
              kConverts<std::nullptr_t, Global<int>>);
static_assert(kConverts<Global<float>, Global<void>> &&
              kConverts<Global<float>, Global<const void>>);
static_assert(!kConverts<Global<const float>, Global<float>> &&
              !kConverts<Global<void>, Global<int>>);
static_assert(!kConverts<Global<float>, Global<int>> && !kConverts<Global<int>, bool>);
static_assert(sizeof(SharedArray<uint8_t, 3>) == 3 && alignof(SharedArray<uint8_t, 3>) == 1);
static_assert(sizeof(SharedArray<float, 4>) == 16 && alignof(SharedArray<float, 4>) == 16);
// An element of device memory has its value only as a temporary.
static_assert(kConverts<GlobalElement<int>, int> && !kConverts<GlobalElement<int>&, int>);
static_assert(!std::is_copy_constructible_v<GlobalElement<int>>);
static_assert(kConverts<SharedElement<int>, int> && !kConverts<SharedElement<int>&, int>);

namespace DSPARK_ISA {
namespace {

struct Pair {
    int32_t first;
    float second;
};
struct VocabularyArgs {
    Global<Pair> pairs;        // [256]
    Global<const int> values;  // [256]
    Global<float> out;         // [256]
};
struct VocabularyShared {
    SharedArray<Pair, kThreads> pairs;
    SharedArray<uint8_t, kThreads> bytes;
};

// Each thread works on entries of its own. All of it comes to 40 t + 12.
template <int W>
DSPARK_KERNEL(kThreads)
void use_vocabulary(VocabularyArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(VocabularyShared, shared);
    const int t = thread_idx();
    const int64_t far = t;

    args.pairs[t] = {args.values[t], 1.0f};  // {t, 1}
    const Pair pair = args.pairs[far];
    const Global<const Pair> read = args.pairs + t;
    float sum = read->second + static_cast<float>(pair.first);  // t + 1
    sum += (*read).second;                                      // t + 2

    Global<float> out = args.out;
    out += t;
    *out = 1;
    out[0] += 2.0f;
    *out *= 3;
    out[0] -= 1.0f;                             // 8
    sum += args.out[t] + (t < 0 ? out[1] : 0);  // t + 10
    if (out - args.out == far && out == args.out + t && out != nullptr && bool(out)) sum += 1;

    const Global<const void> raw = args.pairs;
    sum += global_cast<const float>(raw)[2 * t + 1];                      // t + 12
    sum += static_cast<float>(global_cast<const int32_t>(raw)[2 * far]);  // 2 t + 12

    shared.pairs[t] = pair;
    shared.pairs[t] = args.pairs[t];
    shared.bytes[t] = static_cast<uint8_t>(t);
    shared.bytes[t] |= 1;
    shared.bytes[t] &= 0xFE;
    const VocabularyShared& same = shared;
    const int even = same.bytes[t];  // t, less 1 if odd
    const Pair copy = same.pairs[t];
    sum += static_cast<float>(copy.first + even + t % 2);  // 4 t + 12
    args.out[t] = sum + 36.0f * static_cast<float>(copy.first);
}

}  // namespace
}  // namespace DSPARK_ISA
}  // namespace dspark

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

struct Vocabulary {
    static constexpr const char* kName = "vocabulary";
    template <int W>
    static Outcome run() {
        DeviceVector<Pair> pairs("pairs", kBlock, emulator::kUninitialised);
        DeviceVector<int> values("values", kBlock, emulator::kReadOnly);
        DeviceVector<float> out("out", kBlock, emulator::kUninitialised);
        for (int i = 0; i < kBlock; ++i) values[i] = i;
        const VocabularyArgs args = {pairs.data(), values.data(), out.data()};
        const int code = launch("vocabulary", use_vocabulary<W>, {1, 1, 1}, kBlock, nullptr, args);
        return {code,
                all_of(kBlock, [&](int i) { return out[i] == static_cast<float>(40 * i + 12); })};
    }
};

}  // namespace

std::vector<Case> vocabulary_cases() {
    return {make_case<Vocabulary>()};
}

}  // namespace dspark::planted
