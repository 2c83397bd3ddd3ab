// Files of the rendezvous that are damaged, forged or cut while they are read: never a crash, never an endless read,
// always an account that adds up.
#include <cstdlib>
#include <cstring>
#include <random>

#include "recording.h"
#include "ring.h"

namespace ral::trace {

namespace {

using Bytes = std::vector<char>;

Bytes contents(const std::string& path) {
  Bytes bytes(std::filesystem::file_size(path));
  std::FILE* file = std::fopen(path.c_str(), "rb");
  CHECK(std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size());
  std::fclose(file);
  return bytes;
}

void write(const std::string& path, const Bytes& bytes) {
  std::filesystem::remove(path);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  CHECK(std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
  std::fclose(file);
  CHECK(::chmod(path.c_str(), 0600) == 0);
}

// Bytes that are likely to matter: extremes, single bits, neighbours of what was there.
void mutate(Bytes& bytes, std::size_t begin, std::size_t end, std::mt19937& random) {
  static constexpr std::array<std::uint64_t, 10> kAwkward = {
      0, 1, UINT64_MAX, std::uint64_t{1} << 63, INT64_MAX, std::uint64_t{1} << 48, 0xffffffff, 1u << 26, 65536, 17};
  for (unsigned count = 1 + random() % 4; count > 0; --count) {
    const std::size_t at = begin + random() % (end - begin);
    if (random() % 2 == 0) {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    } else {
      const std::uint64_t value = kAwkward[random() % kAwkward.size()];
      const std::size_t place = at & ~std::size_t{7};
      std::memcpy(bytes.data() + place, &value, std::min(sizeof value, bytes.size() - place));
    }
  }
}

struct Originals {
  Bytes ring;
  Bytes process;
  Bytes names;
};

constexpr std::uint64_t kRecords = kLeastRingRecords;

// What a process with one ring wrote, dropped (or overwritten) events, names and stacks included.
Originals originals(const std::string& folder, OnFull on_full = OnFull::kDrop) {
  std::filesystem::create_directory(folder);
  {
    RingWriter ring = begun_ring(folder + "/ring-0", kRecords, on_full);
    const auto names = Names::create(folder + "/names", nullptr);
    std::uint32_t caller = 0;
    for (std::uint64_t i = 0; i < kRecords + 16; ++i) {
      Record record = make_record(i % 2 == 0 ? Kind::kOp : Kind::kTransfer, names->intern("name " + std::to_string(i)));
      record.start_ticks = ticks(detect_clock_source());
      record.end_ticks = record.start_ticks + 1000;
      record.arg1 = i % 4;
      record.stack = caller = names->stack_node(i % 7 == 0 ? 0 : caller, record.name);
      ring.push(record);
    }
    Mapping mapping = create_mapped(folder + "/process", kHeaderBytes);
    auto* header = static_cast<ProcessHeader*>(mapping.get());
    header->magic = kProcessMagic;
    header->version = kLayoutVersion;
    header->pid = 11;
    header->started = 22;
    header->rings = 1;
    header->unrecorded = 3;
    header->note.fill('n');  // no end: it must not be read beyond
    const Originals found{contents(folder + "/ring-0"), contents(folder + "/process"), contents(folder + "/names")};
    return found;
  }
}

Originals overwritten(const std::string& folder) {
  std::filesystem::remove_all(folder);
  return originals(folder, OnFull::kOverwrite);
}

void read_all(const std::string& folder) {
  const auto reader = ProcessReader::open(folder);
  if (reader == nullptr) {
    return;
  }
  Columns columns;
  for (int round = 0; round < 3; ++round) {
    const std::size_t before = columns.rows();
    drain(*reader, 0, now_calibration(), columns);
    CHECK(columns.rows() - before <= kRecords);
  }
  const Account account = reader->account();
  check_balanced(account);
  CHECK(account.received == columns.rows());
  CHECK(account.written <= INT64_MAX && account.dropped <= account.written && account.lost <= account.written);
  for (std::size_t row = 0; row < columns.rows(); ++row) {
    CHECK(columns.dur_ns[row] >= 0 && columns.name[row] < kMaxNames && columns.correlation[row] >= 0);
    CHECK(columns.kind[row] < kKindNames.size() || (columns.kind[row] >= 64 && columns.kind[row] <= 66));
  }
  (void)reader->rings();
  (void)reader->state();
  (void)reader->alarms();
  (void)reader->forget_finished();
  check_balanced(reader->account());
}

}  // namespace

TEST(damaged_files_are_read_safely) {
  const std::string folder = place() + "/11-22";
  const std::array<Originals, 2> both = {originals(folder, OnFull::kDrop), overwritten(folder)};
  const Originals& sound = both[0];
  // `make soak` gives other seeds.
  const char* seed = std::getenv("RAL_TRACE_TEST_SEED");
  std::mt19937 random(seed == nullptr ? 1 : static_cast<unsigned>(std::strtoul(seed, nullptr, 10)));
  for (int round = 0; round < 1000; ++round) {
    Bytes ring = both[random() % 2].ring;
    Bytes process = sound.process;
    const unsigned what = random() % 5;
    if (what == 0) {
      mutate(ring, 0, sizeof(RingHeader), random);
    } else if (what == 1) {
      mutate(ring, offsetof(RingHeader, sequence), offsetof(RingHeader, tail) + 8, random);
    } else if (what == 2) {
      mutate(ring, kHeaderBytes, ring.size(), random);
    } else if (what == 3) {
      ring.resize(random() % ring.size());
    } else {
      mutate(process, 16, 80, random);
    }
    write(folder + "/ring-0", ring);
    write(folder + "/process", process);
    read_all(folder);
  }
  // The name table is large, so fewer of these.
  write(folder + "/process", sound.process);
  for (int round = 0; round < 30; ++round) {
    Bytes names = sound.names;
    constexpr std::size_t kStacks = offsetof(NameTable, stacks);
    if (round % 3 == 0) {
      names.resize(random() % names.size());
    } else {
      mutate(names, 0, 64 + 100 * sizeof(NameEntry), random);
      mutate(names, 64, 64 + 100 * sizeof(NameEntry), random);
      mutate(names, kStacks, kStacks + 100 * sizeof(StackNode), random);
      mutate(names, kStacks, kStacks + 100 * sizeof(StackNode), random);
    }
    write(folder + "/names", names);
    const NameList list = NameList::read(folder + "/names");
    for (const auto& [id, text] : list.names) {
      CHECK(id > 0 && id < kMaxNames && text.size() <= kMaxNameBytes);
    }
    for (const auto& [id, caller, frame] : list.stacks) {
      CHECK(id > caller && id < kMaxStackNodes && frame > 0 && frame < kMaxNames);
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(a_table_whose_names_overlap_does_not_exhaust_memory) {
  const std::string folder = place() + "/11-22";
  Bytes names = originals(folder).names;
  auto* table = reinterpret_cast<NameTable*>(names.data());
  table->next_id = UINT32_MAX;
  for (NameEntry& entry : table->entries) {
    entry.offset = 0;
    entry.length = kNamePoolBytes + 1;  // 64 Ki times 3.5 MiB
  }
  write(folder + "/names", names);
  CHECK(NameList::read(folder + "/names").names.empty());
  std::filesystem::remove_all(folder);
}

TEST(a_ring_that_is_cut_under_the_reader_ends_well) {
  TestRecording recording(1024);
  for (int i = 0; i < 10; ++i) {
    emit_numbered(0);
  }
  const auto reader = recording.reader();
  Columns columns;
  CHECK(drain(*reader, 0, now_calibration(), columns) == 10);
  for (int i = 0; i < 10; ++i) {
    emit_numbered(0);
  }
  // Not to nothing: this process goes on writing into the part that is mapped and there.
  std::filesystem::resize_file(recording.process_path() + "/ring-0", kHeaderBytes);
  CHECK(drain(*reader, 0, now_calibration(), columns) == 0);
  CHECK(drain(*reader, 0, now_calibration(), columns) == 0);
  const Account account = reader->account();
  CHECK(account.written == 20 && account.received == 10 && account.lost == 10);
  // The writer's next event would be outside its file: give the room back.
  recording.end();
}

TEST(what_is_not_ours_or_not_a_file_is_not_opened) {
  const std::string folder = place() + "/11-22";
  const Originals sound = originals(folder);
  CHECK(ProcessReader::open(folder) != nullptr);
  CHECK(::chmod((folder + "/process").c_str(), 0644) == 0);
  CHECK(ProcessReader::open(folder) == nullptr);
  write(folder + "/real", sound.process);
  std::filesystem::remove(folder + "/process");
  std::filesystem::create_symlink(folder + "/real", folder + "/process");
  CHECK(ProcessReader::open(folder) == nullptr);
  std::filesystem::remove(folder + "/process");
  CHECK(::mkfifo((folder + "/process").c_str(), 0600) == 0);
  CHECK(ProcessReader::open(folder) == nullptr);
  // A header that says it is another process than its folder does.
  std::filesystem::rename(folder, place() + "/11-23");
  write(place() + "/11-23/process", sound.process);
  CHECK(ProcessReader::open(place() + "/11-23") == nullptr);
  std::filesystem::remove_all(place() + "/11-23");
}

TEST(a_page_that_was_left_half_made_is_finished) {
  // Elsewhere than the page that this process watches.
  const std::string usual = place();
  const std::string folder = usual + "-half-made";
  ::setenv("RAL_TRACE_DIR", folder.c_str(), 1);
  const std::string path = Rendezvous::open()->folder() + "/page";
  CHECK(path == folder + "/page");
  write(path, Bytes(kHeaderBytes, '\0'));
  CHECK(Rendezvous::open()->read()->magic == kPageMagic);
  for (const std::size_t bytes : {std::size_t{1}, kHeaderBytes - 1, kHeaderBytes + 1}) {
    write(path, Bytes(bytes, '\0'));
    bool refused = false;
    try {
      Rendezvous::open();
    } catch (const std::runtime_error& error) {
      refused = std::string(error.what()).find("wrong size") != std::string::npos;
    }
    CHECK(refused);
  }
  std::filesystem::remove_all(folder);
  ::setenv("RAL_TRACE_DIR", usual.c_str(), 1);
}

}  // namespace ral::trace
