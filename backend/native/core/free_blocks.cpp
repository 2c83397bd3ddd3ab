#include "free_blocks.h"

namespace ral {

void FreeBlocks::insert(Block* block) {
  ++count_;
  const std::size_t index = bin(block->size);
  if (index >= kBins) {
    large_.insert(block);
    return;
  }
  block->bin_previous = nullptr;
  block->bin_next = bins_[index];
  if (block->bin_next != nullptr) {
    block->bin_next->bin_previous = block;
  }
  bins_[index] = block;
  occupied_[index / 64] |= std::uint64_t{1} << (index % 64);
}

void FreeBlocks::remove(Block* block) {
  --count_;
  const std::size_t index = bin(block->size);
  if (index >= kBins) {
    large_.erase(block);
    return;
  }
  (block->bin_previous != nullptr ? block->bin_previous->bin_next : bins_[index]) = block->bin_next;
  if (block->bin_next != nullptr) {
    block->bin_next->bin_previous = block->bin_previous;
  }
  if (bins_[index] == nullptr) {
    occupied_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
  }
}

void FreeBlocks::resize(Block* block, std::uint64_t address, std::size_t size) {
  if (bin(block->size) >= kBins && bin(size) >= kBins) {
    auto node = large_.extract(block);
    block->address = address;
    block->size = size;
    large_.insert(std::move(node));
    return;
  }
  remove(block);
  block->address = address;
  block->size = size;
  insert(block);
}

Block* FreeBlocks::best_small(std::size_t size) const {
  const std::size_t index = bin(size);
  if (index >= kBins) {
    return nullptr;
  }
  std::uint64_t word = occupied_[index / 64] & (~std::uint64_t{0} << (index % 64));
  for (std::size_t i = index / 64;; word = occupied_[i]) {
    if (word != 0) {
      return bins_[i * 64 + static_cast<std::size_t>(__builtin_ctzll(word))];
    }
    if (++i == occupied_.size()) {
      return nullptr;
    }
  }
}

Block* FreeBlocks::best(std::size_t size) const {
  if (count_ == 0) {
    return nullptr;
  }
  if (Block* small = best_small(size)) {
    return small;
  }
  const auto found = large_.lower_bound(size);
  return found == large_.end() ? nullptr : *found;
}

Block* FreeBlocks::first(std::size_t size, std::size_t most) const {
  Block* lowest = nullptr;
  const auto consider = [&](Block* block) {
    if (block->size <= most && (lowest == nullptr || block->lies_before(*lowest))) {
      lowest = block;
    }
  };
  for (std::size_t word = bin(size) / 64; word < occupied_.size(); ++word) {
    for (std::uint64_t bits = occupied_[word]; bits != 0; bits &= bits - 1) {
      Block* block = bins_[word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits))];
      for (; block != nullptr && block->size >= size; block = block->bin_next) {
        consider(block);
      }
    }
  }
  for (auto found = large_.lower_bound(size); found != large_.end() && (*found)->size <= most; ++found) {
    consider(*found);
  }
  return lowest;
}

std::size_t FreeBlocks::largest() const {
  if (!large_.empty()) {
    return (*large_.rbegin())->size;
  }
  for (std::size_t index = kBins; index-- > 0;) {
    if (bins_[index] != nullptr) {
      return bins_[index]->size;
    }
  }
  return 0;
}

void FreeBlocks::visit(const std::function<void(Block*)>& each) const {
  for (Block* block : bins_) {
    for (; block != nullptr; block = block->bin_next) {
      each(block);
    }
  }
  for (Block* block : large_) {
    each(block);
  }
}

}  // namespace ral
