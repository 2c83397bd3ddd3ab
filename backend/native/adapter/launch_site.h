// Where in the program a launch comes from, for the error that its kernel may raise later. Off unless asked for.
#pragma once

#include <memory>
#include <string>

namespace ral {

using LaunchSite = std::shared_ptr<void>;

void record_launch_sites(bool on) noexcept;
bool records_launch_sites() noexcept;

// Of the calling thread, as Python's frames; nothing where nobody asked. Takes the GIL: under no lock.
LaunchSite gather_launch_site();
// "train.py:12 in step", the innermost line that is not torch's; empty where there is none. Takes the GIL.
std::string describe_site(const LaunchSite& site);

}  // namespace ral
