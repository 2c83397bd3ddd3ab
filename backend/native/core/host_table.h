// The functions that a plugin is given (struct ral_host): each checks all that it is handed, and none throws.
#pragma once

#include "devices.h"
#include "ral_plugin.h"

namespace ral {

// A table of this plugin's own, valid for as long as the process lives; in force from open_host_table() on.
const ral_host* make_host_table();
// From now on calls through the table are those of this vendor.
void open_host_table(const ral_host* table, const Vendor* vendor);

}  // namespace ral
