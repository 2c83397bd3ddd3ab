// Interned texts: one id a text, whoever asks; a full table is counted; what the collector reads is what was written.
#include <map>

#include "recording.h"

namespace ral::trace {

namespace {

std::map<std::uint32_t, std::string> read_back(const Names& names, std::uint64_t* refused) {
  std::map<std::uint32_t, std::string> found;
  const NameList list = NameList::read(names.path());
  for (const auto& [id, text] : list.names) {
    found[id] = text;
  }
  *refused = list.refused;
  return found;
}

}  // namespace

TEST(the_same_text_from_many_threads_is_one_id) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  constexpr std::size_t kThreads = 8;
  constexpr std::size_t kTexts = 2000;
  std::vector<std::vector<std::uint32_t>> ids(kThreads, std::vector<std::uint32_t>(kTexts));
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < kTexts; ++i) {
        const std::size_t text = thread % 2 == 0 ? i : kTexts - 1 - i;
        ids[thread][text] = names->intern("aten::op_" + std::to_string(text));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::uint64_t refused = 0;
  const auto found = read_back(*names, &refused);
  CHECK(refused == 0);
  for (std::size_t text = 0; text < kTexts; ++text) {
    for (std::size_t thread = 1; thread < kThreads; ++thread) {
      CHECK(ids[thread][text] == ids[0][text]);
    }
    CHECK(found.at(ids[0][text]) == "aten::op_" + std::to_string(text));
  }
}

TEST(a_full_table_gives_zero_and_counts) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  std::uint32_t given = 0;
  for (std::uint32_t i = 0; i < kMaxNames + 10; ++i) {
    given += names->intern(std::to_string(i)) != 0 ? 1 : 0;
  }
  CHECK(given == kMaxNames - 1);  // id 0 is nobody's
  CHECK(names->intern("17") != 0 && names->intern("never seen") == 0);
  std::uint64_t refused = 0;
  CHECK(read_back(*names, &refused).size() == kMaxNames - 1);
  CHECK(refused == 12);
}

TEST(a_full_pool_gives_zero_and_counts) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  std::string text(kMaxNameBytes, 'x');
  std::uint32_t given = 0;
  for (std::uint32_t i = 0; i < 3000; ++i) {
    text.replace(0, 4, std::to_string(1000 + i));
    given += names->intern(text) != 0 ? 1 : 0;
  }
  CHECK(given == kNamePoolBytes / kMaxNameBytes);
  std::uint64_t refused = 0;
  CHECK(read_back(*names, &refused).size() == given);
  CHECK(refused == 3000 - given);
}

TEST(long_names_are_cut) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  const std::string text(kMaxNameBytes + 100, 'n');
  const std::uint32_t id = names->intern(text);
  CHECK(id != 0 && names->intern(text + "different beyond the cut") == id);
  std::uint64_t refused = 0;
  CHECK(read_back(*names, &refused).at(id) == text.substr(0, kMaxNameBytes));
  CHECK(names->intern("") != 0);
}

TEST(a_pool_grows_by_steps_until_there_is_no_room) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  const auto pool_bytes = [&] {
    struct stat status{};
    CHECK(::stat(names->path().c_str(), &status) == 0);
    return static_cast<std::size_t>(status.st_blocks) * 512 - offsetof(NameTable, pool) / 4096 * 4096;
  };
  const std::size_t first = pool_bytes();
  CHECK(first >= 256 * 1024 && first <= 256 * 1024 + 4096);
  const auto text = [](std::uint32_t number) {
    std::string long_text = std::to_string(number);
    long_text.resize(1024, 'x');
    return long_text;
  };
  for (std::uint32_t i = 0; i < 300; ++i) {
    CHECK(names->intern(text(i)) != 0);
  }
  CHECK(pool_bytes() == first + 256 * 1024);
  // A file that others may read is not ours: no more memory comes.
  CHECK(::chmod(names->path().c_str(), 0644) == 0);
  std::uint32_t given = 300;
  for (std::uint32_t i = 300; i < 1000; ++i) {
    given += names->intern(text(i)) != 0 ? 1 : 0;
  }
  CHECK(::chmod(names->path().c_str(), 0600) == 0);
  CHECK(given == 512);
  CHECK(names->intern(text(299)) != 0 && names->intern(text(900)) == 0);
  std::uint64_t refused = 0;
  CHECK(read_back(*names, &refused).size() == 512);
  CHECK(refused == 1000 - 512 + 1);
}

TEST(the_same_stack_from_many_threads_is_one_node) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  constexpr std::size_t kThreads = 8;
  constexpr std::uint32_t kStacks = 1000;
  // Stack n calls stack n / 2, so that many share what they begin with.
  std::vector<std::vector<std::uint32_t>> ids(kThreads, std::vector<std::uint32_t>(kStacks));
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::uint32_t>& mine = ids[thread];
      for (std::uint32_t i = 1; i < kStacks; ++i) {
        mine[i] = names->stack_node(mine[i / 2], names->intern("frame " + std::to_string(i % 10)));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> right;
  const NameList list = NameList::read(names->path());
  const std::map<std::uint32_t, std::string> text(list.names.begin(), list.names.end());
  std::map<std::uint32_t, std::array<std::uint32_t, 3>> nodes;
  for (const auto& node : list.stacks) {
    nodes[node[0]] = node;
  }
  for (std::uint32_t i = 1; i < kStacks; ++i) {
    for (std::size_t thread = 1; thread < kThreads; ++thread) {
      CHECK(ids[thread][i] == ids[0][i]);
    }
    const auto& [id, caller, frame] = nodes.at(ids[0][i]);
    CHECK(id == ids[0][i] && caller == ids[0][i / 2] && text.at(frame) == "frame " + std::to_string(i % 10));
    // One node a pair of caller and frame.
    CHECK(right.emplace(std::pair(caller, text.at(frame)), id).first->second == id);
  }
  CHECK(list.refused_stacks == 0);
}

TEST(a_full_table_of_stacks_gives_zero_and_counts) {
  const auto names = Names::create(place() + "/names-1-1", nullptr);
  const std::uint32_t frame = names->intern("frame");
  std::uint32_t caller = 0;
  std::uint32_t given = 0;
  for (std::uint32_t i = 0; i < kMaxStackNodes + 9; ++i) {
    const std::uint32_t node = names->stack_node(caller, frame);
    given += node != 0 ? 1 : 0;
    caller = node != 0 ? node : caller;
  }
  CHECK(given == kMaxStackNodes - 1);
  CHECK(names->stack_node(0, frame) != 0 && names->stack_node(caller, frame) == 0 && names->stack_node(0, 0) == 0);
  const NameList list = NameList::read(names->path());
  CHECK(list.stacks.size() == kMaxStackNodes - 1 && list.refused_stacks == 11);
}

TEST(a_copy_keeps_ids_and_goes_its_own_way) {
  const auto parents = Names::create(place() + "/names-1-1", nullptr);
  const std::uint32_t shared = parents->intern("shared");
  const auto childs = Names::create(place() + "/names-1-2", parents.get());
  CHECK(childs->intern("shared") == shared);
  CHECK(childs->intern("of the child") == parents->intern("of the parent"));
  std::uint64_t refused = 0;
  CHECK(read_back(*childs, &refused).at(shared + 1) == "of the child");
  CHECK(read_back(*parents, &refused).at(shared + 1) == "of the parent");
  const std::uint32_t node = parents->stack_node(0, shared);
  const auto grandchilds = Names::create(place() + "/names-1-3", parents.get());
  CHECK(grandchilds->stack_node(0, shared) == node && grandchilds->stack_node(node, shared) == node + 1);
  CHECK(NameList::read(parents->path()).stacks.size() == 1);
}

}  // namespace ral::trace
