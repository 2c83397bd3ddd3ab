// The free blocks of one pool: a list for each small size, a tree for the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>

#include "block.h"

namespace ral {

class FreeBlocks {
 public:
  explicit FreeBlocks(std::size_t alignment) : shift_(static_cast<unsigned>(__builtin_ctzll(alignment))) {}

  void insert(Block* block);
  void remove(Block* block);
  // Gives a block of this pool another place. One that stays large keeps its node in the tree: no allocation.
  void resize(Block* block, std::uint64_t address, std::size_t size);
  // The smallest block of at least this size (of these the one that lies before the others, where large), or nullptr.
  Block* best(std::size_t size) const;
  // The block that lies before the others of `size` to `most` bytes, or nullptr. Looks at each of them.
  Block* first(std::size_t size, std::size_t most) const;
  std::size_t largest() const;
  std::size_t count() const { return count_; }
  // `each` must not change the pool.
  void visit(const std::function<void(Block*)>& each) const;

 private:
  static constexpr std::size_t kBins = 512;  // blocks of up to this many alignments have a list for each size

  struct BySize {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->lies_before(*b);
    }
    bool operator()(const Block* a, std::size_t size) const { return a->size < size; }
    bool operator()(std::size_t size, const Block* b) const { return size < b->size; }
  };

  std::size_t bin(std::size_t size) const { return (size >> shift_) - 1; }
  Block* best_small(std::size_t size) const;

  unsigned shift_;
  std::size_t count_ = 0;
  std::array<Block*, kBins> bins_{};
  std::array<std::uint64_t, kBins / 64> occupied_{};
  std::set<Block*, BySize> large_;
};

}  // namespace ral
