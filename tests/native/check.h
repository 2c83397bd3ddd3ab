// All the harness that these tests need: cases that register themselves, checks that say where they failed, a folder of
// their own.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

#define TEST(name)                                                                 \
  static void name();                                                              \
  static const bool name##_registered = (cases().push_back({#name, &name}), true); \
  static void name()

// Where this run keeps its rendezvous: $RAL_TRACE_DIR, which the Python side makes and removes.
inline std::string place() { return std::getenv("RAL_TRACE_DIR"); }
