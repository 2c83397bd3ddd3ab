// Devices that come and go while the process lives: how a plugin's news reaches the runtime.
#pragma once

#include <string>

#include "devices.h"

namespace ral {

class HotPlug {
 public:
  virtual ~HotPlug() = default;
  // The new device's number. Throws NoFreeSlot.
  virtual int announce(const Vendor& vendor, int vendor_index, const VendorInfo& info) = 0;
  // False: there is no such device of this vendor.
  virtual bool withdraw(const Vendor& vendor, int device, const std::string& reason) = 0;

  // The process's one; nullptr before there are devices. `set` is called once.
  static HotPlug* receiver() noexcept;
  static void set(HotPlug* receiver) noexcept;
};

}  // namespace ral
