// What a collector keeps on disk: whole blocks stay, whatever happened to the last one; and who goes on after its death
// takes exactly the rest.
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <random>

#include "recording.h"
#include "spool.h"

namespace ral::trace {

namespace {

Record numbered(std::uint64_t number) {
  Record record = make_record(Kind::kInstant, 0);
  record.start_ticks = record.end_ticks = ticks(detect_clock_source());
  record.arg0 = number;
  return record;
}

std::vector<std::uint64_t> numbers_in(const std::string& path) {
  SpoolReader reader(path);
  Columns columns;
  while (reader.next(now_calibration(), SIZE_MAX, 0, columns)) {
  }
  return {columns.arg0.begin(), columns.arg0.end()};
}

void copy_part(const std::string& from, const std::string& to, std::uint64_t bytes) {
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
  CHECK(::chmod(to.c_str(), 0600) == 0);
  std::filesystem::resize_file(to, bytes);
}

void append(Spool& spool, std::int32_t process, std::uint32_t ring, std::uint64_t first, std::size_t count) {
  std::vector<Record> records;
  for (std::size_t i = 0; i < count; ++i) {
    records.push_back(numbered(first + i));
  }
  CHECK(spool.append(process, {ring, 1, first, count}, records.data(), count));
}

}  // namespace

TEST(a_spool_cut_anywhere_keeps_what_was_whole) {
  const std::string whole = place() + "/spool";
  const std::string cut = place() + "/spool-cut";
  std::vector<std::uint64_t> ends = {0};
  {
    Spool spool(whole);
    for (const std::size_t count : {3, 1, 4}) {
      append(spool, 0, 2, ends.size() * 10, count);
      ends.push_back(spool.bytes());
    }
  }
  const std::vector<std::uint64_t> right = {10, 11, 12, 20, 30, 31, 32, 33};
  const std::array<std::size_t, 4> rows = {0, 3, 4, 8};
  for (std::uint64_t bytes = 0; bytes <= ends.back(); ++bytes) {
    copy_part(whole, cut, bytes);
    std::size_t blocks = 0;
    while (blocks + 1 < ends.size() && ends[blocks + 1] <= bytes) {
      ++blocks;
    }
    // Whoever only reads sees it as it is; whoever goes on cuts the rest off.
    CHECK(numbers_in(cut) ==
          std::vector<std::uint64_t>(right.begin(), right.begin() + static_cast<long>(rows[blocks])));
    Spool spool(cut);
    CHECK(spool.bytes() == ends[blocks] && std::filesystem::file_size(cut) == ends[blocks]);
    const TakenRings taken = spool.taken(0);
    CHECK(taken.size() == (blocks == 0 ? 0u : 1u) && spool.taken(1).empty());
    if (blocks > 0) {
      CHECK(taken.at(2).received == rows[blocks] && taken.at(2).tail == right[rows[blocks] - 1] + 1);
    }
    append(spool, 1, 0, 77, 1);
    std::vector<std::uint64_t> more(right.begin(), right.begin() + static_cast<long>(rows[blocks]));
    more.push_back(77);
    CHECK(numbers_in(cut) == more);
  }
  std::filesystem::remove(whole);
  std::filesystem::remove(cut);
}

TEST(a_damaged_spool_is_read_safely) {
  const std::string whole = place() + "/spool";
  const std::string damaged = place() + "/spool-damaged";
  std::uint64_t bytes = 0;
  {
    Spool spool(whole);
    for (std::uint32_t block = 0; block < 8; ++block) {
      append(spool, static_cast<std::int32_t>(block % 3), block % 2, block * 10, 5);
    }
    bytes = spool.bytes();
  }
  const char* seed = std::getenv("RAL_TRACE_TEST_SEED");
  std::mt19937 random(seed == nullptr ? 1 : static_cast<unsigned>(std::strtoul(seed, nullptr, 10)));
  for (int round = 0; round < 500; ++round) {
    copy_part(whole, damaged, bytes);
    for (unsigned count = 1 + random() % 4; count > 0; --count) {
      const std::array<std::uint64_t, 5> awkward = {0, UINT64_MAX, INT64_MAX, std::uint64_t{1} << 32, random()};
      patch(damaged, random() % (bytes - 8), awkward[random() % awkward.size()]);
    }
    CHECK(numbers_in(damaged).size() <= 40);
    Spool spool(damaged);
    CHECK(spool.bytes() <= bytes);
    for (std::int32_t process = 0; process < 3; ++process) {
      CHECK(spool.taken(process).size() <= 8);
    }
  }
  std::filesystem::remove(whole);
  std::filesystem::remove(damaged);
}

TEST(a_spool_that_is_not_ours_alone_is_refused) {
  const std::string path = place() + "/spool";
  const auto refused = [&] {
    try {
      Spool spool(path);
    } catch (const std::runtime_error& error) {
      return std::string(error.what()).find("mode 0600") != std::string::npos;
    }
    return false;
  };
  {
    Spool spool(path);
  }
  CHECK(::chmod(path.c_str(), 0640) == 0);
  CHECK(refused());
  CHECK(::chmod(path.c_str(), 0600) == 0);
  std::filesystem::rename(path, path + "-real");
  std::filesystem::create_symlink(path + "-real", path);
  CHECK(refused());
  std::filesystem::remove(path);
  CHECK(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(refused());
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  CHECK(refused());
  std::filesystem::remove(path);
  if (::geteuid() == 0) {
    CHECK(::chown((path + "-real").c_str(), 65534, 65534) == 0);
    std::filesystem::rename(path + "-real", path);
    CHECK(refused());
    std::filesystem::remove(path);
  }
  std::filesystem::remove(path + "-real");
}

TEST(what_a_full_disk_refuses_stays_in_the_ring) {
  const std::string path = place() + "/spool";
  TestRecording recording(4096);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    emit_numbered(i);
  }
  const auto reader = recording.reader();
  Spool spool(path);
  {
    class FullDisk : public RecordSink {
      bool take(const Drained& /*from*/, const Record* /*records*/, std::size_t /*count*/) override { return false; }
    } full;
    CHECK(reader->drain(full) == 0);
    CHECK(reader->drain(full) == 0);
  }
  SpoolSink sink(spool, 0);
  CHECK(reader->drain(sink) == 1000 && !sink.failed());
  check_balanced(reader->account());
  CHECK(reader->account().received == 1000 && numbers_in(path).size() == 1000);
  std::filesystem::remove(path);
}

TEST(who_goes_on_for_a_dead_collector_takes_exactly_the_rest) {
  const std::string path = place() + "/spool";
  TestRecording recording(4096);
  const std::string ring = recording.process_path() + "/ring-0";
  for (std::uint64_t i = 0; i < 300; ++i) {
    emit_numbered(i);
  }
  {
    Spool spool(path);
    SpoolSink sink(spool, 0);
    CHECK(recording.reader()->drain(sink) == 300);
  }
  // It died between what it kept and saying so to the writer: nothing is taken twice.
  patch(ring, offsetof(RingHeader, tail), std::uint64_t{0});
  {
    Spool spool(path);
    SpoolSink sink(spool, 0);
    const auto reader = ProcessReader::open(recording.process_path(), spool.taken(0));
    CHECK(reader->drain(sink) == 0);
    for (std::uint64_t i = 300; i < 350; ++i) {
      emit_numbered(i);
    }
    CHECK(reader->drain(sink) == 50);
    const Account account = reader->account();
    CHECK(account.written == 350 && account.received == 350 && account.dropped == 0 && account.lost == 0);
  }
  const std::vector<std::uint64_t> found = numbers_in(path);
  CHECK(found.size() == 350 && std::is_sorted(found.begin(), found.end()) && found.back() == 349);
  // What the disk lost afterwards is lost, and said to be.
  const std::uint64_t last_block = sizeof(SpoolBlock) + 50 * sizeof(Record);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - last_block + 1);
  Spool spool(path);
  const auto reader = ProcessReader::open(recording.process_path(), spool.taken(0));
  SpoolSink sink(spool, 0);
  CHECK(reader->drain(sink) == 0);
  const Account account = reader->account();
  CHECK(account.written == 350 && account.received == 300 && account.dropped == 0 && account.lost == 50);
  std::filesystem::remove(path);
}

TEST(rings_that_a_dead_collector_removed_do_not_hide_later_ones) {
  TestRecording recording(1024);
  // A thread that wrote nothing leaves a ring without an event; its collector removed it.
  std::thread([] { api().add_spent(1); }).join();
  const auto reader = recording.reader();
  {
    Columns columns;
    drain(*reader, 0, now_calibration(), columns);
    CHECK(reader->forget_finished().size() == 1);
  }
  std::thread([] { emit_numbered(5); }).join();
  const auto resumed = ProcessReader::open(recording.process_path(), {});
  Columns columns;
  CHECK(drain(*resumed, 0, now_calibration(), columns) == 1 && columns.arg0[0] == 5);
}

TEST(collectors_that_are_killed_anywhere_neither_lose_nor_repeat) {
  const std::string path = place() + "/spool";
  for (const OnFull on_full : {OnFull::kDrop, OnFull::kOverwrite}) {
    TestRecording recording(512, 0, on_full);
    std::atomic<bool> stop{false};
    std::uint64_t emitted = 0;
    std::thread writer([&] {
      while (!stop) {
        emit_numbered(emitted++);
      }
    });
    while (!std::filesystem::exists(recording.process_path() + "/ring-0")) {
    }
    std::mt19937 random(7);
    const auto collect = [&](bool forever) {
      Spool spool(path);
      const auto reader = ProcessReader::open(recording.process_path(), spool.taken(0));
      CHECK(reader != nullptr);
      SpoolSink sink(spool, 0);
      do {
        reader->drain(sink);
        CHECK(!sink.failed());
      } while (forever);
      return reader->account();
    };
    for (int round = 0; round < 12; ++round) {
      const pid_t collector = ::fork();
      CHECK(collector >= 0);
      if (collector == 0) {
        collect(true);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
      CHECK(::kill(collector, SIGKILL) == 0 && ::waitpid(collector, nullptr, 0) == collector);
    }
    stop = true;
    writer.join();
    const Account account = collect(false);
    check_balanced(account);
    const std::vector<std::uint64_t> found = numbers_in(path);
    CHECK(account.written == emitted && account.lost == 0 && account.received == found.size());
    CHECK(std::adjacent_find(found.begin(), found.end(), [](auto one, auto next) { return next <= one; }) ==
          found.end());
    std::filesystem::remove(path);
  }
}

}  // namespace ral::trace
