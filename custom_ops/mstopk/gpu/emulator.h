// A small GPU on the CPU: every thread of the grid is a fiber, so that blocks can wait for each
// other.
//
// Fibers switch at every collective (barriers, ballots, shuffles) and run in an order drawn anew
// for each launch: a missing barrier shows up as a result that depends on the seed. A warp whose
// lanes meet at different collectives, and a grid where nothing can run, end the program with a
// message. Memory ordering and timing are not modelled.

#ifndef CUSTOM_OPS_MSTOPK_GPU_EMULATOR_H_
#define CUSTOM_OPS_MSTOPK_GPU_EMULATOR_H_

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define MSTOPK_DEVICE inline
#define MSTOPK_UNROLL

namespace mstopk {
namespace gpu {

constexpr uint32_t kThreads = 64;  // per block

class Emulator {
 public:
  // Runs kernel() once per thread of a grid.
  static void Launch(uint32_t blocks, uint32_t shared_words, uint64_t seed,
                     std::function<void()> kernel) {
    Emulator emulator(blocks, shared_words, std::move(kernel));
    current_ = &emulator;
    emulator.Run(seed);
    current_ = nullptr;
  }

  static Emulator& Current() { return *current_; }

  uint32_t thread() const { return running_ % kThreads; }
  uint32_t block() const { return running_ / kThreads; }
  uint32_t* shared() { return shared_.data() + block() * shared_words_; }

  enum Kind { kWarpSync = 1, kBallot, kShuffle, kBlockSync, kGridSync };

  // Waits until all `size` threads of group `group` have come; their values are then in Values().
  const std::vector<uint32_t>& Meet(Kind kind, uint32_t value) {
    const uint32_t size = kind == kGridSync ? fibers_.size() : kind == kBlockSync ? kThreads : 32;
    Group& group = GroupOf(kind);
    if (group.arrived == 0) {
      group.kind = kind;
      group.incoming.assign(size, 0);
    } else if (group.kind != kind) {
      Fail("threads of one group meet at different collectives");
    }
    group.incoming[running_ % size] = value;
    const uint64_t round = group.round;
    if (++group.arrived == size) {
      group.values.swap(group.incoming);
      group.arrived = 0;
      ++group.round;
    }
    idle_ = 0;
    while (group.round == round) Yield();
    return group.values;
  }

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done = false;
  };
  struct Group {
    Kind kind = kWarpSync;
    uint32_t arrived = 0;
    uint64_t round = 0;
    std::vector<uint32_t> incoming, values;
  };
  static constexpr size_t kStackBytes = 128 << 10;

  Emulator(uint32_t blocks, uint32_t shared_words, std::function<void()> kernel)
      : shared_words_(shared_words),
        kernel_(std::move(kernel)),
        fibers_(blocks * kThreads),
        warps_(blocks * kThreads / 32),
        blocks_(blocks),
        shared_(blocks * shared_words, 0xdeadbeefu) {}

  Group& GroupOf(Kind kind) {
    if (kind == kGridSync) return grid_;
    return kind == kBlockSync ? blocks_[block()] : warps_[running_ / 32];
  }

  static void Entry() {
    current_->kernel_();
    current_->fibers_[current_->running_].done = true;
    current_->idle_ = 0;
    swapcontext(&current_->fibers_[current_->running_].context, &current_->scheduler_);
  }

  void Yield() { swapcontext(&fibers_[running_].context, &scheduler_); }

  void Run(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> order(fibers_.size());
    for (uint32_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      Fiber& fiber = fibers_[i];
      fiber.stack.reset(new char[kStackBytes]);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, Entry, 0);
    }
    for (size_t left = order.size(); left > 0;) {
      std::shuffle(order.begin(), order.end(), random);
      left = 0;
      for (const uint32_t i : order) {
        if (fibers_[i].done) continue;
        running_ = i;
        if (++idle_ > 4 * fibers_.size()) Fail("no thread can go on");
        swapcontext(&scheduler_, &fibers_[i].context);
        left += !fibers_[i].done;
      }
    }
  }

  [[noreturn]] void Fail(const char* what) const {
    std::fprintf(stderr, "emulated GPU: %s (block %u, thread %u)\n", what, block(), thread());
    std::abort();
  }

  static inline Emulator* current_ = nullptr;
  const uint32_t shared_words_;
  const std::function<void()> kernel_;
  std::vector<Fiber> fibers_;
  std::vector<Group> warps_;
  std::vector<Group> blocks_;
  Group grid_;
  std::vector<uint32_t> shared_;
  ucontext_t scheduler_;
  uint32_t running_ = 0;
  uint64_t idle_ = 0;  // switches since anything happened
};

inline uint32_t ThreadIndex() { return Emulator::Current().thread(); }
inline uint32_t BlockIndex() { return Emulator::Current().block(); }

inline void BlockSync() { Emulator::Current().Meet(Emulator::kBlockSync, 0); }
inline void GridSync() { Emulator::Current().Meet(Emulator::kGridSync, 0); }
inline void WarpSync() { Emulator::Current().Meet(Emulator::kWarpSync, 0); }

inline uint32_t Ballot(bool predicate) {
  const std::vector<uint32_t>& values = Emulator::Current().Meet(Emulator::kBallot, predicate);
  uint32_t mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= values[lane] << lane;
  return mask;
}
inline uint32_t Broadcast(uint32_t value, int lane) {
  return Emulator::Current().Meet(Emulator::kShuffle, value)[lane];
}
inline uint32_t ShuffleDown(uint32_t value, int distance) {
  const uint32_t source = ThreadIndex() % 32 + distance;
  const std::vector<uint32_t>& values = Emulator::Current().Meet(Emulator::kShuffle, value);
  return source < 32 ? values[source] : value;
}
inline int PopCount(uint32_t mask) { return __builtin_popcount(mask); }
inline int LeadingZeros(uint32_t word) { return word == 0 ? 32 : __builtin_clz(word); }

inline uint32_t AtomicAdd(uint32_t* address, uint32_t value) {
  const uint32_t before = *address;
  *address += value;
  return before;
}

template <typename Bits>
Bits LoadStreaming(const Bits* address) {
  return *address;
}
template <typename Bits>
Bits LoadConstant(const Bits* address) {
  return *address;
}
inline uint32_t LoadFromOthers(const uint32_t* address) { return *address; }
inline float AddFloats(float a, float b) { return a + b; }
inline uint32_t* SharedMemory() { return Emulator::Current().shared(); }

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_EMULATOR_H_
