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

TEST(a_copy_keeps_ids_and_goes_its_own_way) {
  const auto parents = Names::create(place() + "/names-1-1", nullptr);
  const std::uint32_t shared = parents->intern("shared");
  const auto childs = Names::create(place() + "/names-1-2", parents.get());
  CHECK(childs->intern("shared") == shared);
  CHECK(childs->intern("of the child") == parents->intern("of the parent"));
  std::uint64_t refused = 0;
  CHECK(read_back(*childs, &refused).at(shared + 1) == "of the child");
  CHECK(read_back(*parents, &refused).at(shared + 1) == "of the parent");
}

}  // namespace ral::trace
