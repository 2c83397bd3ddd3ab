// One thread and more, one session and more: what is written, read, dropped, and how it adds up.
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "recording.h"
#include "ring.h"

namespace ral::trace {

namespace {

Record at_ticks(std::uint64_t number) {
  Record record = make_record(Kind::kInstant, 0);
  record.start_ticks = record.end_ticks = ticks(detect_clock_source());
  record.arg0 = number;
  return record;
}

}  // namespace

TEST(a_full_ring_drops_and_counts) {
  TestRecording recording(1024);
  for (std::uint64_t i = 0; i < 1500; ++i) {
    emit_numbered(i);
  }
  Columns columns;
  const auto reader = recording.reader();
  CHECK(drain(*reader, 7, now_calibration(), columns) == 1024);
  Account account = reader->account();
  CHECK(account.written == 1500 && account.received == 1024 && account.dropped == 476 && account.lost == 0);
  // There is room again, and the sequence goes on where it was.
  emit_numbered(1500);
  CHECK(drain(*reader, 7, now_calibration(), columns) == 1);
  account = reader->account();
  CHECK(account.written == 1501 && account.received == 1025 && account.dropped == 476);
  CHECK(columns.rows() == 1025 && columns.arg0[1023] == 1023 && columns.arg0[1024] == 1500);
  CHECK(columns.process[0] == 7 && columns.tid[0] == static_cast<std::uint32_t>(::gettid()));
}

TEST(what_is_read_while_it_is_written_is_exact) {
  TestRecording recording(256);
  constexpr std::uint64_t kEvents = 60'000;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kEvents; ++i) {
      emit_numbered(i);
    }
    done = true;
  });
  const auto reader = recording.reader();
  const Calibration clock = now_calibration();
  Columns columns;
  while (!done) {
    drain(*reader, 0, clock, columns);
    check_balanced(reader->account());
  }
  writer.join();
  drain(*reader, 0, clock, columns);
  const Account account = reader->account();
  check_balanced(account);
  CHECK(account.written == kEvents && account.lost == 0 && account.received == columns.rows());
  CHECK(std::is_sorted(columns.arg0.begin(), columns.arg0.end()));
  CHECK(std::adjacent_find(columns.arg0.begin(), columns.arg0.end()) == columns.arg0.end());
}

TEST(sequence_numbers_have_gaps_where_events_were_dropped) {
  const std::string path = place() + "/lone-ring";
  RingWriter ring = begun_ring(path, kLeastRingRecords);
  const auto reader = RingReader::open(path, 3);
  const Record record = at_ticks(1);
  for (std::uint64_t i = 0; i < kLeastRingRecords + 2; ++i) {
    ring.push(record);  // the last two do not fit
  }
  Columns columns;
  std::vector<Record> scratch;
  CHECK(drain(*reader, now_calibration(), scratch, columns) == kLeastRingRecords);
  ring.push(record);
  CHECK(drain(*reader, now_calibration(), scratch, columns) == 1);
  CHECK(scratch[0].sequence == kLeastRingRecords + 2);
  CHECK(!reader->finished());
  ring.close();
  CHECK(drain(*reader, now_calibration(), scratch, columns) == 0);
  const RingAccount account = reader->account();
  CHECK(account.finished && account.ring == 3 && account.tid == 1);
  CHECK(account.account.written == kLeastRingRecords + 3 && account.account.dropped == 2 && account.account.lost == 0);
  reader->remove_file();
  CHECK(!std::filesystem::exists(path));
}

TEST(an_event_that_a_killed_writer_did_not_commit_is_lost) {
  const std::string path = place() + "/killed-ring";
  {
    RingWriter ring = begun_ring(path, kLeastRingRecords);
    ring.push(at_ticks(1));
    // As if it died between the number and the commit.
    patch(path, offsetof(RingHeader, sequence), std::uint64_t{2});
  }
  const auto reader = RingReader::open(path, 0);
  Columns columns;
  std::vector<Record> scratch;
  CHECK(drain(*reader, now_calibration(), scratch, columns) == 1);
  const Account account = reader->account().account;
  CHECK(account.written == 2 && account.received == 1 && account.lost == 1);
  std::filesystem::remove(path);
}

namespace {

// Event n carries its number twice, so that half of one and half of another is seen.
Record proven(std::uint64_t number) {
  Record record = at_ticks(number);
  record.correlation = number * 0x9e3779b97f4a7c15u >> 1;
  return record;
}

bool is_proven(const Record& record) {
  return record.correlation == record.arg0 * 0x9e3779b97f4a7c15u >> 1 &&
         record.sequence == static_cast<std::uint32_t>(record.arg0);
}

// Takes the records themselves, and holds each against what was written.
class ProvingSink : public RecordSink {
 public:
  bool take(const Drained& /*from*/, const Record* records, std::size_t count) override {
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(is_proven(records[i]));
      CHECK(numbers.empty() || records[i].arg0 > numbers.back());
      numbers.push_back(records[i].arg0);
    }
    return true;
  }
  std::vector<std::uint64_t> numbers;
};

void push_up_to(RingWriter& ring, std::uint64_t* next, std::uint64_t end) {
  for (; *next < end; ++*next) {
    ring.push(proven(*next));
  }
}

// The last ones, in order.
void check_window(const std::vector<std::uint64_t>& numbers, std::uint64_t begin, std::uint64_t end) {
  CHECK(numbers.size() == end - begin && numbers.front() == begin && numbers.back() == end - 1);
}

// From here on its writer finds no memory for the rest of its ring: a file that others may read is not ours.
void refuse_more(const std::string& path) { CHECK(::chmod(path.c_str(), 0644) == 0); }
void admit(const std::string& path) { CHECK(::chmod(path.c_str(), 0600) == 0); }

}  // namespace

TEST(a_ring_that_overwrites_keeps_its_last_events) {
  const std::string path = place() + "/flight-ring";
  RingWriter ring = begun_ring(path, 4096, OnFull::kOverwrite);
  std::uint64_t next = 0;
  for (const std::uint64_t end :
       {std::uint64_t{10}, std::uint64_t{1024}, std::uint64_t{4096}, std::uint64_t{4097}, std::uint64_t{20'000}}) {
    push_up_to(ring, &next, end);
    // Each dump reads anew, and finds the same.
    for (int dump = 0; dump < 2; ++dump) {
      const auto reader = RingReader::open(path, 0);
      ProvingSink sink;
      std::vector<Record> scratch;
      reader->drain(sink, scratch);
      check_window(sink.numbers, end > 4096 ? end - 4096 : 0, end);
      const Account account = reader->account().account;
      CHECK(account.written == end && account.received == sink.numbers.size() && account.lost == 0);
      CHECK(account.dropped == end - account.received);
    }
  }
  std::filesystem::remove(path);
}

TEST(who_reads_beside_a_writer_that_overwrites_sees_whole_events_once) {
  const std::string path = place() + "/racing-ring";
  for (const bool shrinks : {false, true}) {
    RingWriter ring = begun_ring(path, shrinks ? 8192 : 512, OnFull::kOverwrite);
    const auto reader = RingReader::open(path, 0);
    constexpr std::uint64_t kEvents = 150'000;
    std::atomic<bool> done{false};
    std::thread writer([&] {
      std::uint64_t next = 0;
      push_up_to(ring, &next, 2500);
      if (shrinks) {
        refuse_more(path);  // it ends up with 2,048 of its 3,072 events' memory
      }
      push_up_to(ring, &next, kEvents);
      done = true;
    });
    ProvingSink sink;
    std::vector<Record> scratch;
    while (!done) {
      reader->drain(sink, scratch);
      check_balanced(reader->account().account);
    }
    writer.join();
    reader->drain(sink, scratch);
    const Account account = reader->account().account;
    check_balanced(account);
    CHECK(account.written == kEvents && account.lost == 0 && account.received == sink.numbers.size());
    CHECK(account.dropped == kEvents - account.received && sink.numbers.back() == kEvents - 1);
    CHECK(account.damaged_rings == 0);
    std::filesystem::remove(path);
  }
}

TEST(a_ring_that_finds_no_memory_goes_on_with_what_it_has) {
  const std::string path = place() + "/poor-ring";
  {
    RingWriter ring = begun_ring(path, 8192);
    const auto reader = RingReader::open(path, 0);
    ProvingSink sink;
    std::vector<Record> scratch;
    std::uint64_t next = 0;
    push_up_to(ring, &next, 2500);
    refuse_more(path);
    push_up_to(ring, &next, 3172);  // 3,072 fit, 100 do not
    reader->drain(sink, scratch);
    check_window(sink.numbers, 0, 3072);
    for (std::uint64_t round = 0; round < 3; ++round) {
      // 2,048, a power of two, of the 3,000 fit from now on.
      push_up_to(ring, &next, 3172 + (round + 1) * 3000);
      sink.numbers.clear();
      reader->drain(sink, scratch);
      check_window(sink.numbers, 3172 + round * 3000, 3172 + round * 3000 + 2048);
    }
    const Account account = reader->account().account;
    CHECK(account.written == 12172 && account.received == 3072 + 3 * 2048 && account.lost == 0);
    CHECK(account.dropped == account.written - account.received);
  }
  std::filesystem::remove(path);
  RingWriter ring = begun_ring(path, 8192, OnFull::kOverwrite);
  std::uint64_t next = 0;
  push_up_to(ring, &next, 2500);
  refuse_more(path);
  for (const std::uint64_t end : {3072, 3100, 4000, 4096, 5000, 9000}) {
    push_up_to(ring, &next, end);
    admit(path);
    const auto reader = RingReader::open(path, 0);
    ProvingSink sink;
    std::vector<Record> scratch;
    reader->drain(sink, scratch);
    check_window(sink.numbers, end == 3072 ? 0 : end - 2048, end);
    check_balanced(reader->account().account);
    refuse_more(path);
  }
  std::filesystem::remove(path);
}

TEST(a_ring_takes_its_memory_in_steps) {
  const std::string path = place() + "/growing-ring";
  RingWriter ring = begun_ring(path, 65536);
  const auto blocks = [&] {
    struct stat status{};
    CHECK(::stat(path.c_str(), &status) == 0 && status.st_size == 65536 * 64 + 4096);
    return status.st_blocks * 512;
  };
  CHECK(blocks() == 4096 + 1024 * 64);
  std::uint64_t next = 0;
  push_up_to(ring, &next, 1024);
  CHECK(blocks() == 4096 + 1024 * 64);
  push_up_to(ring, &next, 1025);
  CHECK(blocks() == 4096 + 2048 * 64);
  push_up_to(ring, &next, 65'536);
  CHECK(blocks() == 4096 + 65536 * 64);
  std::filesystem::remove(path);
}

TEST(threads_come_and_go_without_leaving_anything) {
  TestRecording recording(1024);
  const auto reader = recording.reader();
  Columns columns;
  constexpr int kRounds = 10;
  constexpr int kThreads = 8;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([i] {
        for (int event = 0; event <= i; ++event) {
          emit_numbered(static_cast<std::uint64_t>(event));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    drain(*reader, 0, now_calibration(), columns);
  }
  const Account account = reader->account();
  CHECK(account.written == kRounds * 36 && account.received == account.written && columns.rows() == account.written);
  // Of the threads that were alive at a drain, the rings are there until somebody has their accounts.
  const std::vector<RingAccount> rings = reader->forget_finished();
  CHECK(rings.size() == kRounds * kThreads && reader->rings().empty());
  check_balanced(reader->account());
  CHECK(reader->account().written == kRounds * 36);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(recording.process_path())) {
    files += entry.path().filename().string().rfind("ring-", 0) == 0 ? 1 : 0;
  }
  CHECK(files == 0);
}

TEST(a_thread_without_room_for_its_ring_is_counted) {
  TestRecording recording(1024);
  CHECK(::chmod(recording.process_path().c_str(), 0700) == 0);
  // Its name is taken, which is one way for a ring not to come about.
  emit_numbered(0);  // takes the spare ring
  const std::string taken = recording.process_path() + "/ring-1";
  std::filesystem::create_directory(taken);
  std::thread([] {
    for (int i = 0; i < 5; ++i) {
      emit_numbered(0);
    }
  }).join();
  std::filesystem::remove(taken);
  std::thread([] { emit_numbered(0); }).join();
  Columns columns;
  const auto reader = recording.reader();
  drain(*reader, 0, now_calibration(), columns);
  const Account account = reader->account();
  CHECK(account.written == 7 && account.received == 2 && account.dropped == 5 && account.lost == 0);
  CHECK(reader->unrecorded() == 5);
}

TEST(each_of_several_sessions_gets_every_event_of_its_time) {
  std::vector<std::unique_ptr<TestRecording>> recordings;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> emitted{0};
  // A second thread that sees sessions come and go; what it writes must balance, whatever it is.
  std::thread other([&] {
    while (!stop) {
      emit_numbered(1'000'000);
      ++emitted;
    }
  });
  constexpr std::size_t kAtOnce = 3;
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    recordings.push_back(std::make_unique<TestRecording>(std::size_t{1} << 12));
    for (std::uint64_t event = 0; event < 100; ++event) {
      emit_numbered(i * 100 + event);
    }
  }
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    recordings[i]->end();
    for (std::uint64_t event = 0; event < 100; ++event) {
      emit_numbered((kAtOnce + i) * 100 + event);
    }
  }
  stop = true;
  other.join();
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    Columns columns;
    const auto reader = recordings[i]->reader();
    drain(*reader, 0, now_calibration(), columns);
    const Account account = reader->account();
    check_balanced(account);
    CHECK(account.lost == 0 && account.received == columns.rows());
    std::vector<std::uint64_t> mine;
    std::copy_if(columns.arg0.begin(), columns.arg0.end(), std::back_inserter(mine),
                 [](std::uint64_t number) { return number < 1'000'000; });
    // From its own first event to the last one before it ended.
    CHECK(mine.size() == kAtOnce * 100 && mine.front() == i * 100 && mine.back() == (kAtOnce + i) * 100 - 1);
    CHECK(reader->state() == ProcessState::kDetached);
  }
  CHECK(!ral::trace::recording(api()));
}

TEST(a_forked_child_has_rings_and_names_of_its_own) {
  TestRecording recording(1024);
  const std::uint32_t before = api().intern("before", 6);
  emit_numbered(1);
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    bool right = api().intern("before", 6) == before;  // event sites keep their ids
    const std::uint32_t own = api().intern("of the child", 12);
    Record record = make_record(Kind::kAnnotation, own);
    emit_instant(api(), record);
    for (int i = 0; i < 4; ++i) {
      emit_numbered(2);
    }
    ::_exit(right ? 0 : 1);
  }
  for (int i = 0; i < 3; ++i) {
    emit_numbered(3);
  }
  const std::string path = recording.process_path(child);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child && status == 0);
  const auto mine = recording.reader();
  const auto childs = ProcessReader::open(path);
  CHECK(childs != nullptr && childs->header().pid == child);
  Columns columns;
  Columns childs_columns;
  drain(*mine, 0, now_calibration(), columns);
  drain(*childs, 0, now_calibration(), childs_columns);
  CHECK(mine->account().written == 4 && columns.rows() == 4);
  CHECK(childs->account().written == 5 && childs_columns.rows() == 5);
  std::map<std::uint32_t, std::string> names;
  for (const auto& [id, text] : NameList::read(path + "/names").names) {
    names[id] = text;
  }
  CHECK(names[before] == "before" && names[childs_columns.name[0]] == "of the child");
}

TEST(a_process_that_called_exec_is_recorded_again) {
  TestRecording recording(1024);
  // The folder of this process's earlier image is there already.
  const std::string path = recording.process_path();
  recording.end();
  std::filesystem::rename(path, path + ".gone");
  std::filesystem::create_directory(path);
  recording.sessions.release(static_cast<std::size_t>(recording.slot));
  recording.slot = recording.sessions.begin(recording.session, 0, 1024, recording.folder, kAnnotations, OnFull::kDrop);
  Writer::instance().sync();
  emit_numbered(0);
  const auto reader = ProcessReader::open(path + ".1");
  CHECK(reader != nullptr);
  Columns columns;
  CHECK(drain(*reader, 0, now_calibration(), columns) == 1);
}

TEST(sessions_are_eight_and_those_of_the_dead_make_room) {
  std::vector<std::unique_ptr<TestRecording>> recordings;
  for (std::size_t i = 0; i < kSessions; ++i) {
    recordings.push_back(std::make_unique<TestRecording>(1024));
  }
  Sessions& sessions = recordings[0]->sessions;
  CHECK(sessions.begin(99, 0, 1024, "session-99", kAnnotations, OnFull::kDrop) == -1);
  // As if the collector of the fifth had been killed.
  forge_slot(sessions, 5, [](SessionSlot& slot) { slot.collector_started = 1; });
  std::size_t dead = 0;
  for (const SessionView& view : sessions.taken()) {
    dead += view.collector_alive ? 0 : 1;
  }
  CHECK(sessions.taken().size() == kSessions && dead == 1);
  CHECK(sessions.begin(99, ::getpid(), 1024, "session-99", kAnnotations, OnFull::kDrop) == 5);
  Writer::instance().sync();  // its folder does not exist: counted, and the process goes on
  CHECK(sessions.attach_failures(5) == 1);
  // Who looked before the slot was taken anew does not take it away.
  sessions.release_dead(5);
  CHECK(sessions.taken().size() == kSessions);
  forge_slot(sessions, 5, [](SessionSlot& slot) { slot.collector_started = 1; });
  sessions.release_dead(5);
  CHECK(sessions.taken().size() == kSessions - 1);
}

TEST(a_slot_whose_collector_died_while_it_claimed_it_is_free) {
  std::vector<std::unique_ptr<TestRecording>> recordings;
  for (std::size_t i = 0; i < kSessions; ++i) {
    recordings.push_back(std::make_unique<TestRecording>(1024));
  }
  forge_slot(recordings[0]->sessions, 3, [](SessionSlot& slot) { slot.state = SlotState::kClaimed; });
  CHECK(recordings[0]->sessions.begin(99, ::getpid(), 1024, "session-99", kAnnotations, OnFull::kDrop) == 3);
}

TEST(a_slot_that_makes_no_sense_is_not_joined) {
  TestRecording good(1024);
  using Forge = void (*)(SessionSlot&);
  const auto folder = [](SessionSlot& slot, std::string_view name) {
    slot.folder.fill('\0');
    name.copy(slot.folder.data(), slot.folder.size());
  };
  static const auto named = folder;
  for (const Forge forge : std::initializer_list<Forge>{
           [](SessionSlot& slot) { slot.ring_records = 1000; },
           [](SessionSlot& slot) { slot.ring_records = 0; },
           [](SessionSlot& slot) { slot.ring_records = kLeastRingRecords / 2; },
           [](SessionSlot& slot) { slot.ring_records = std::uint64_t{1} << 60; },
           [](SessionSlot& slot) { slot.session = 0; },
           [](SessionSlot& slot) { slot.on_full = static_cast<OnFull>(2); },
           [](SessionSlot& slot) { slot.state = static_cast<SlotState>(77); },
           [](SessionSlot& slot) { named(slot, ""); },
           [](SessionSlot& slot) { named(slot, ".."); },
           [](SessionSlot& slot) { named(slot, "."); },
           [](SessionSlot& slot) { named(slot, "../x"); },
           [](SessionSlot& slot) { named(slot, "/tmp"); },
           [](SessionSlot& slot) { named(slot, "session-x/../../y"); },
       }) {
    const int slot = good.sessions.begin(77, ::getpid() + 1, 1024, "session-x", kAnnotations, OnFull::kDrop);
    forge_slot(good.sessions, static_cast<std::size_t>(slot), [&](SessionSlot& forged) {
      forged.target_pid = 0;
      forge(forged);
    });
    Writer::instance().sync();
    CHECK(api().sessions->load() == 1u << good.slot);
    CHECK(good.sessions.attach_failures(static_cast<std::size_t>(slot)) == 0);
    good.sessions.release(static_cast<std::size_t>(slot));
  }
  // A name without an end, and details that nobody knows, are a name and details.
  const int slot = good.sessions.begin(78, 0, 1024, "session-x", kAnnotations, OnFull::kDrop);
  forge_slot(good.sessions, static_cast<std::size_t>(slot), [](SessionSlot& forged) {
    forged.folder.fill('f');
    forged.details = UINT32_MAX;
  });
  Writer::instance().sync();
  CHECK(good.sessions.attach_failures(static_cast<std::size_t>(slot)) == 1);  // there is no such folder
  CHECK(api().details->load() == kAnnotations);
  good.sessions.release(static_cast<std::size_t>(slot));
}

TEST(correlations_are_unique_across_threads) {
  std::vector<std::vector<std::uint64_t>> taken(8);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 3000; ++i) {
        mine.push_back(api().next_correlation());
      }
    });
  }
  std::vector<std::uint64_t> all;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i].join();
    all.insert(all.end(), taken[i].begin(), taken[i].end());
  }
  std::sort(all.begin(), all.end());
  CHECK(all.front() > 0 && std::adjacent_find(all.begin(), all.end()) == all.end());
}

}  // namespace ral::trace
