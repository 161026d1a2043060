// Collecting candidates and emitting winners; both are parallel over fixed blocks and independent
// of the number of threads.

#include "custom_ops/mstopk/candidates.h"

#include <algorithm>
#include <atomic>

namespace mstopk {
namespace {

constexpr int64_t kChunk = 1 << 13;  // elements scanned before their candidates are put away

int64_t BlockCount(int64_t n) { return (n + kBlockElements - 1) / kBlockElements; }

// How many ties blocks before `block` are known to hold: a lower bound, since blocks may still run.
int64_t TiesBefore(const std::vector<std::atomic<int64_t>>& ties, int64_t block) {
  int64_t sum = 0;
  for (int64_t b = 0; b < block; ++b) sum += ties[b].load(std::memory_order_relaxed);
  return sum;
}

// Drops the ties beyond *ties_left from `count` fresh candidates; returns how many remain.
template <typename Bits>
int64_t TrimTies(Bits* bits, uint32_t* offsets, int64_t count, uint32_t certain,
                 int64_t* ties_left) {
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool tie = KeyOf(bits[i]) < certain;
    if (tie && *ties_left <= 0) continue;
    *ties_left -= tie;
    bits[kept] = bits[i];
    offsets[kept++] = offsets[i];
  }
  return kept;
}

}  // namespace

template <typename Bits>
void CandidateBlock<Bits>::Append(const Bits* bits, const uint32_t* offsets, int64_t count) {
  if (size_ + count > room_) {
    room_ = std::max(size_ + count, std::min(2 * room_, kBlockElements));
    std::unique_ptr<Bits[]> more_bits(new Bits[room_]);  // not make_unique: that would clear them
    std::unique_ptr<uint32_t[]> more_offsets(new uint32_t[room_]);
    std::copy_n(bits_, size_, more_bits.get());
    std::copy_n(offsets_, size_, more_offsets.get());
    own_bits_ = std::move(more_bits);
    own_offsets_ = std::move(more_offsets);
    bits_ = own_bits_.get();
    offsets_ = own_offsets_.get();
  }
  std::copy_n(bits, count, bits_ + size_);
  std::copy_n(offsets, count, offsets_ + size_);
  size_ += count;
}

template <typename Bits>
int64_t Candidates<Bits>::Size() const {
  int64_t size = 0;
  for (const auto& block : blocks) size += block.size();
  return size;
}

template <typename Bits>
std::vector<Span<Bits>> Candidates<Bits>::Spans() const {
  std::vector<Span<Bits>> spans;
  spans.reserve(blocks.size());
  for (const auto& block : blocks) spans.push_back({block.bits(), block.size()});
  return spans;
}

template <typename Bits>
Candidates<Bits> CollectCandidates(int64_t n, const AdmissionRule& rule, bool visit_all,
                                   const ScanRange<Bits>& scan, const ParallelFor& parallel_for) {
  Candidates<Bits> result;
  if (n == 0) return result;
  const int64_t block_count = BlockCount(n);
  result.blocks.resize(block_count);
  const double share = std::clamp(1.1 * rule.expected / n, 0.0, 1.0);
  const int64_t room = static_cast<int64_t>(share * std::min(n, kBlockElements)) + kScanSlack;
  result.bits.reset(new Bits[block_count * room]);
  result.offsets.reset(new uint32_t[block_count * room]);
  const bool trim = rule.tie_quota != kUnlimited;
  std::vector<std::atomic<int64_t>> ties(trim ? block_count : 0);
  alignas(64) std::atomic<int64_t> admitted{0};
  alignas(64) std::atomic<bool> gave_up{false};  // on a line that is only read, nearly always

  parallel_for(block_count, [&](int64_t b) {
    CandidateBlock<Bits> block(&result.bits[b * room], &result.offsets[b * room], room);
    Bits bits[kChunk + kScanSlack];
    uint32_t offsets[kChunk + kScanSlack];
    const int64_t begin = b * kBlockElements;
    const int64_t length = std::min(kBlockElements, n - begin);
    int64_t ties_left = trim ? rule.tie_quota - TiesBefore(ties, b) : 0;
    int64_t tied = 0;     // of the block's candidates; the quota bounds them, not the limit
    int64_t counted = 0;  // of its others, in `admitted`
    for (int64_t done = 0; done < length; done += kChunk) {
      const bool collecting = !gave_up.load(std::memory_order_relaxed);
      if (!collecting && !visit_all) break;
      const int64_t count = std::min(kChunk, length - done);
      const uint32_t admitted_from = trim && ties_left <= 0 ? rule.certain : rule.floor;
      const uint32_t floor = collecting ? admitted_from : KeyTraits<Bits>::kMax + 1;
      int64_t fresh = scan(begin + done, count, floor, done, bits, offsets);
      if (trim && ties_left > 0) {  // it never rises again
        const int64_t before = ties_left;
        fresh = TrimTies(bits, offsets, fresh, rule.certain, &ties_left);
        tied += before - ties_left;
        ties[b].store(tied, std::memory_order_relaxed);
        // Blocks before may run still, and have found more since: or as many threads would keep k each.
        ties_left = rule.tie_quota - TiesBefore(ties, b) - tied;
      }
      block.Append(bits, offsets, fresh);
      const bool last = done + kChunk >= length;
      const int64_t uncounted = block.size() - tied - counted;
      if (rule.limit == kUnlimited || (!last && uncounted < kChunk)) continue;
      if (admitted.fetch_add(uncounted) + uncounted > rule.limit) {
        gave_up.store(true, std::memory_order_relaxed);
      }
      counted += uncounted;
    }
    result.blocks[b] = std::move(block);
  });
  result.complete = !gave_up.load();
  return result;
}

template <typename Bits, typename Index>
void EmitWinners(const Candidates<Bits>& candidates, uint32_t floor, uint32_t certain, int64_t k,
                 const ParallelFor& parallel_for, Bits* values, Index* indices) {
  const int64_t block_count = candidates.blocks.size();
  struct Share {
    int64_t certain = 0;
    int64_t ties = 0;    // first those present, then those granted
    bool split = false;  // whether some, but not all, of those present were granted
    int64_t begin = 0;
  };
  std::vector<Share> shares(block_count);
  parallel_for(block_count, [&](int64_t b) {
    const CandidateBlock<Bits>& block = candidates.blocks[b];
    const Bits* const bits = block.bits();
    int32_t at_least_certain = 0;  // a block has fewer than 2^31 elements
    int32_t at_least_floor = 0;
    for (int64_t i = 0; i < block.size(); ++i) {
      at_least_certain += KeyOf(bits[i]) >= certain;
      at_least_floor += KeyOf(bits[i]) >= floor;
    }
    shares[b].certain = at_least_certain;
    shares[b].ties = at_least_floor - at_least_certain;
  });

  int64_t ties_wanted = k;
  for (const Share& share : shares) ties_wanted -= share.certain;
  int64_t begin = 0;
  for (Share& share : shares) {
    share.split = share.ties > ties_wanted && ties_wanted > 0;
    share.ties = std::min(share.ties, ties_wanted);
    ties_wanted -= share.ties;
    share.begin = begin;
    begin += share.certain + share.ties;
  }

  parallel_for(block_count, [&](int64_t b) {
    const CandidateBlock<Bits>& block = candidates.blocks[b];
    const Index first = static_cast<Index>(b * kBlockElements);
    int64_t out = shares[b].begin;
    const int64_t end = out + shares[b].certain + shares[b].ties;
    const auto emit_while = [&](auto&& wins) {
      for (int64_t i = 0; out < end; ++i) {  // writing before deciding costs no branch
        values[out] = block.bits()[i];
        indices[out] = first + static_cast<Index>(block.offsets()[i]);
        out += wins(KeyOf(block.bits()[i]));
      }
    };
    if (shares[b].split) {
      int64_t ties_left = shares[b].ties;
      emit_while([&](uint32_t key) {
        const bool tie = (key >= floor) & (key < certain) & (ties_left > 0);
        ties_left -= tie;
        return (key >= certain) | tie;
      });
    } else {
      const uint32_t least = shares[b].ties > 0 ? floor : certain;
      emit_while([least](uint32_t key) { return key >= least; });
    }
  });
}

template class CandidateBlock<uint16_t>;
template class CandidateBlock<uint32_t>;
template struct Candidates<uint16_t>;
template struct Candidates<uint32_t>;
template Candidates<uint16_t> CollectCandidates(int64_t, const AdmissionRule&, bool,
                                                const ScanRange<uint16_t>&, const ParallelFor&);
template Candidates<uint32_t> CollectCandidates(int64_t, const AdmissionRule&, bool,
                                                const ScanRange<uint32_t>&, const ParallelFor&);
#define MSTOPK_INSTANTIATE(Bits, Index)                                           \
  template void EmitWinners(const Candidates<Bits>&, uint32_t, uint32_t, int64_t, \
                            const ParallelFor&, Bits*, Index*)
MSTOPK_INSTANTIATE(uint16_t, int32_t);
MSTOPK_INSTANTIATE(uint16_t, int64_t);
MSTOPK_INSTANTIATE(uint32_t, int32_t);
MSTOPK_INSTANTIATE(uint32_t, int64_t);
#undef MSTOPK_INSTANTIATE

}  // namespace mstopk
