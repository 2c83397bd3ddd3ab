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

TEST(a_page_that_is_cut_short_kills_nobody) {
  TestRecording recording(1024);
  const std::string path = recording.sessions.folder() + "/page";
  const Bytes page = contents(path);
  const auto slot = static_cast<std::size_t>(recording.slot);
  emit_numbered(0);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{64}, sizeof(Page) - 1}) {
    std::filesystem::resize_file(path, bytes);
    Writer::instance().sync();
    // What recorded us can no longer tell us to stop.
    CHECK(!ral::trace::recording(api()));
    emit_numbered(1);
    CHECK(recording.sessions.taken().empty() && recording.sessions.attach_failures(slot) == 0);
    recording.sessions.announce();
    recording.sessions.end(slot);
    recording.sessions.release(slot);
    CHECK(std::filesystem::file_size(path) == bytes);  // nobody wrote beyond the end
    bool refused = false;
    try {
      recording.sessions.begin(5, 0, 1024, "session-5", kAnnotations, OnFull::kDrop);
    } catch (const std::runtime_error&) {
      refused = true;
    }
    CHECK(refused);
  }
  std::filesystem::resize_file(path, kHeaderBytes);
  patch(path, 0, *reinterpret_cast<const std::array<char, kHeaderBytes>*>(page.data()));
  const auto reader = recording.reader();
  Columns columns;
  CHECK(drain(*reader, 0, now_calibration(), columns) == 1 && reader->state() == ProcessState::kDetached);
}

TEST(a_page_in_another_ones_place_is_not_believed) {
  TestRecording recording(1024);
  const std::string path = recording.sessions.folder() + "/page";
  const Bytes page = contents(path);
  std::filesystem::rename(path, path + "-kept");
  write(path, page);
  Writer::instance().sync();
  CHECK(!ral::trace::recording(api()) && recording.sessions.taken().empty());
  std::filesystem::rename(path + "-kept", path);
  Writer::instance().sync();
  CHECK(ral::trace::recording(api()));
}

namespace {

// Why a rendezvous is refused; nothing when it is not.
std::string refusal(const std::string& folder) {
  const std::string usual = place();
  ::setenv("RAL_TRACE_DIR", folder.c_str(), 1);
  std::string why;
  try {
    Rendezvous::open();
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  ::setenv("RAL_TRACE_DIR", usual.c_str(), 1);
  return why;
}

}  // namespace

TEST(a_rendezvous_that_others_could_have_made_is_refused) {
  const std::string real = place() + "-real";
  const std::string folder = place() + "-attacked";
  const auto refused = [&](const char* why) { return refusal(folder).find(why) != std::string::npos; };
  CHECK(refusal(real).empty());
  std::filesystem::create_symlink(real, folder);
  CHECK(refused("mode 0700"));
  std::filesystem::remove(folder);
  std::filesystem::create_symlink(real + "-not-there", folder);
  CHECK(refused("mode 0700"));
  CHECK(!std::filesystem::exists(real + "-not-there"));
  std::filesystem::remove(folder);
  CHECK(::mkfifo(folder.c_str(), 0700) == 0);
  CHECK(refused("mode 0700"));
  std::filesystem::remove(folder);
  std::filesystem::create_directory(folder);
  for (const mode_t mode : {0777u, 01777u, 0750u, 0701u}) {
    CHECK(::chmod(folder.c_str(), mode) == 0);
    CHECK(refused("mode 0700"));
  }
  CHECK(::chmod(folder.c_str(), 0700) == 0);
  // The page in it.
  const std::string page = folder + "/page";
  std::filesystem::create_symlink(real + "/page", page);
  CHECK(refused("mode 0600"));
  std::filesystem::remove(page);
  CHECK(::mkfifo(page.c_str(), 0600) == 0);
  CHECK(refused("mode 0600"));
  std::filesystem::remove(page);
  std::filesystem::create_directory(page);
  CHECK(refused("mode 0600"));
  std::filesystem::remove(page);
  write(page, contents(real + "/page"));
  CHECK(::chmod(page.c_str(), 0666) == 0);
  CHECK(refused("mode 0600"));
  CHECK(::chmod(page.c_str(), 0600) == 0);
  CHECK(refusal(folder).empty());
  if (::geteuid() == 0) {
    CHECK(::chown(page.c_str(), 65534, 65534) == 0);
    CHECK(refused("mode 0600"));
    CHECK(::chown(page.c_str(), 0, 0) == 0 && ::chown(folder.c_str(), 65534, 65534) == 0);
    CHECK(refused("mode 0700"));
  }
  patch(real + "/page", offsetof(Page, version), std::uint32_t{kLayoutVersion + 1});
  CHECK(refusal(real).find("another version") != std::string::npos);
  std::filesystem::remove_all(folder);
  std::filesystem::remove_all(real);
}

TEST(a_session_folder_that_is_a_link_is_not_written_into) {
  TestRecording recording(1024);
  const std::string elsewhere = recording.sessions.folder() + "/elsewhere";
  std::filesystem::create_directory(elsewhere);
  CHECK(::chmod(elsewhere.c_str(), 0700) == 0);
  const std::string link = recording.sessions.folder() + "/session-link";
  std::filesystem::create_symlink(elsewhere, link);
  const int slot = recording.sessions.begin(501, 0, 1024, "session-link", kAnnotations, OnFull::kDrop);
  Writer::instance().sync();
  CHECK(recording.sessions.attach_failures(static_cast<std::size_t>(slot)) == 1);
  CHECK(std::filesystem::is_empty(elsewhere));
  CHECK(api().sessions->load() == 1u << recording.slot);
  recording.sessions.release(static_cast<std::size_t>(slot));
  Writer::instance().sync();
  // The same folder, but one that others can enter.
  std::filesystem::remove(link);
  std::filesystem::rename(elsewhere, link);
  CHECK(::chmod(link.c_str(), 0755) == 0);
  const int second = recording.sessions.begin(502, 0, 1024, "session-link", kAnnotations, OnFull::kDrop);
  Writer::instance().sync();
  CHECK(recording.sessions.attach_failures(static_cast<std::size_t>(second)) == 1 && std::filesystem::is_empty(link));
  recording.sessions.release(static_cast<std::size_t>(second));
  Writer::instance().sync();
  std::filesystem::remove_all(link);
}

TEST(rings_and_names_that_are_not_ours_are_not_read) {
  const std::string folder = place() + "/11-22";
  const Originals sound = originals(folder);
  write(folder + "/names", sound.names);
  for (const char* name : {"ring-0", "names"}) {
    const std::string path = folder + "/" + name;
    const auto read = [&] {
      Columns columns;
      const auto reader = ProcessReader::open(folder);
      drain(*reader, 0, now_calibration(), columns);
      return std::string(name) == "names" ? NameList::read(path).names.size() : columns.rows();
    };
    CHECK(read() > 0);
    CHECK(::chmod(path.c_str(), 0660) == 0);
    CHECK(read() == 0);
    CHECK(::chmod(path.c_str(), 0600) == 0);
    std::filesystem::rename(path, path + "-real");
    std::filesystem::create_symlink(path + "-real", path);
    CHECK(read() == 0);
    std::filesystem::remove(path);
    CHECK(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(read() == 0);
    std::filesystem::remove(path);
    std::filesystem::rename(path + "-real", path);
    if (::geteuid() == 0) {
      CHECK(::chown(path.c_str(), 65534, 65534) == 0);
      CHECK(read() == 0);
      CHECK(::chown(path.c_str(), 0, 0) == 0);
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace ral::trace
