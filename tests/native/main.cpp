// Runs the cases that are named, or all; prints each name when it has passed.
#include <cstring>

#include "check.h"

int main(int count, char** names) {
  int run = 0;
  for (const Case& one : cases()) {
    bool wanted = count == 1;
    for (int i = 1; i < count; ++i) {
      wanted = wanted || std::strcmp(names[i], one.name) == 0;
    }
    if (wanted) {
      one.run();
      std::printf("%s\n", one.name);
      std::fflush(stdout);
      ++run;
    }
  }
  return run == 0 ? 2 : 0;
}
