#include "plugins.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "host_table.h"
#include "immortal.h"

namespace ral {

namespace {

// --- reading what another compiler wrote ---

template <class Struct>
Struct read_known(const Struct& written) {
  Struct known{};
  const std::size_t size = std::min<std::size_t>(written.struct_size, sizeof(Struct));
  std::memcpy(static_cast<void*>(&known), &written, size);
  known.struct_size = static_cast<std::uint32_t>(size);
  return known;
}

template <std::size_t N>
bool is_printable_text(const char (&text)[N]) {
  const std::size_t length = strnlen(text, N);
  return length > 0 && length < N && std::all_of(text, text + length, [](char c) { return c >= ' ' && c <= '~'; });
}

bool is_power_of_two(std::uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

// Calls into the plugin. It must not throw, but one in C++ may: that is its error, and not the end of the process.
template <class Call>
auto contained(const std::string& function, Call&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    throw PluginError("INIT_FAILED", function + "() threw a C++ exception: " + error.what());
  } catch (...) {  // whatever a vendor throws
    throw PluginError("INIT_FAILED", function + "() threw a C++ exception");
  }
}

// --- a plugin as a vendor ---

class PluginRegions final : public RegionSource {
 public:
  PluginRegions(const ral_plugin& table, int index, std::size_t alignment)
      : table_(table), index_(index), alignment_(alignment) {}

  std::optional<Range> reserve(std::size_t length, const Striping& striping) override {
    ral_region region{};
    region.struct_size = sizeof region;
    const int status = contained("reserve", [&] { return table_.reserve(index_, length, &region); });
    const bool fits = status == RAL_OK && region.length >= length && region.address != 0 &&
                      region.address % alignment_ == 0 && region.address + region.length > region.address;
    if (!fits) {
      return std::nullopt;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    given_[region.address] = region;
    return striped_range(region.address, length, striping, region.handle);
  }
  void release(const Range& range) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto given = given_.find(range.address);
    try {
      table_.release(index_, &given->second);
    } catch (...) {  // a plugin in C++; there is nobody to tell, and the memory is the vendor's
    }
    given_.erase(given);
  }

 private:
  const ral_plugin& table_;
  int index_;
  std::size_t alignment_;
  std::mutex mutex_;
  std::map<std::uint64_t, ral_region> given_;  // by address, as the vendor said
};

class PluginVendor final : public Vendor {
 public:
  explicit PluginVendor(const ral_plugin& table) : table_(table), name_(table.vendor) {}

  const std::string& name() const override { return name_; }
  std::string version() const override { return table_.version; }

  int device_count() const override {
    const int count = contained("device_count", [&] { return table_.device_count(); });
    if (count < 0 || count > kDeviceSlots) {
      throw PluginError("BAD_DESCRIPTOR", "device_count() says " + std::to_string(count) + ", it must be from 0 to " +
                                              std::to_string(kDeviceSlots));
    }
    return count;
  }

  VendorInfo describe(int index) const override {
    // Room behind it: a plugin that was built with a longer descriptor may fill that without looking.
    struct Room {
      ral_descriptor descriptor;
      std::array<unsigned char, 4096> beyond;
    };
    const auto room = std::make_unique<Room>();
    room->descriptor.struct_size = sizeof(ral_descriptor);
    const int status = contained("describe", [&] { return table_.describe(index, &room->descriptor); });
    const std::string what = "device " + std::to_string(index) + ": ";
    if (status != RAL_OK) {
      throw PluginError("BAD_DESCRIPTOR", what + "describe() answers " + std::to_string(status));
    }
    const ral_descriptor descriptor = read_descriptor(room->descriptor);
    if (const std::string fault = descriptor_fault(descriptor); !fault.empty()) {
      throw PluginError("BAD_DESCRIPTOR", what + fault);
    }
    return to_vendor_info(name_, descriptor);
  }

  std::unique_ptr<RegionSource> regions(int index, std::size_t alignment) const override {
    if (table_.reserve == nullptr) {
      return Vendor::regions(index, alignment);
    }
    return std::make_unique<PluginRegions>(table_, index, alignment);
  }
  bool memory_is_mapped() const override { return table_.reserve == nullptr; }

  bool copy(int index, ral_direction direction, std::uint64_t to, std::uint64_t from,
            std::size_t bytes) const override {
    if (table_.copy == nullptr) {
      return false;
    }
    const int status = contained("copy", [&] { return table_.copy(index, direction, to, from, bytes); });
    if (status != RAL_OK) {
      throw PluginError("COPY_FAILED",
                        name_ + ": copy() of " + std::to_string(bytes) + " bytes answers " + std::to_string(status));
    }
    return true;
  }

  const ral_plugin& table() const { return table_; }

 private:
  ral_plugin table_;
  std::string name_;
};

// --- loading ---

class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) {
      return;
    }
    const char* said = dlerror();
    const std::string text = said != nullptr ? said : "unknown error";
    // dlopen names the library that it could not find: ours, or one that ours needs.
    const bool missing = text.find("cannot open shared object file") != std::string::npos && text.find(path) != 0;
    const bool symbol = text.find("undefined symbol") != std::string::npos;
    throw PluginError(missing || symbol ? "MISSING_DEPS" : "NO_LIBRARY", "cannot be loaded: " + text);
  }
  ~Library() {
    if (handle_ != nullptr) {
      dlclose(handle_);
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* symbol(const char* name) const { return dlsym(handle_, name); }
  // Its code may run from now on, on threads of its own too: it stays for good.
  void keep() { handle_ = nullptr; }

 private:
  void* handle_;
};

ral_plugin read_table(const Library& library) {
  const auto entry = reinterpret_cast<ral_plugin_entry_function>(library.symbol(RAL_PLUGIN_ENTRY));
  if (entry == nullptr) {
    throw PluginError("NO_SYMBOL", std::string("exports no function ") + RAL_PLUGIN_ENTRY + "()");
  }
  const ral_plugin* written = contained(RAL_PLUGIN_ENTRY, entry);
  if (written == nullptr) {
    throw PluginError("BAD_ABI", std::string(RAL_PLUGIN_ENTRY) + "() gives no table");
  }
  const std::uint32_t major = written->abi_version >> 16;
  if (major != RAL_PLUGIN_ABI_MAJOR) {
    throw PluginError("BAD_ABI", "is built for version " + std::to_string(major) +
                                     " of the plugin ABI, this ral-trace has version " +
                                     std::to_string(RAL_PLUGIN_ABI_MAJOR) +
                                     (major > RAL_PLUGIN_ABI_MAJOR ? ": install a newer ral-trace"
                                                                   : ": build the plugin against this ral_plugin.h"));
  }
  if (written->struct_size < RAL_PLUGIN_SIZE_1_0) {
    throw PluginError("BAD_ABI", "its table has " + std::to_string(written->struct_size) + " bytes, version 1.0 has " +
                                     std::to_string(RAL_PLUGIN_SIZE_1_0));
  }
  return read_known(*written);
}

void check_table(const ral_plugin& table, const std::string& expected_name) {
  if (!is_printable_text(table.vendor) || !is_vendor_name(table.vendor)) {
    throw PluginError("BAD_DESCRIPTOR", "its vendor must be a lower-case letter, then lower-case letters, digits or _");
  }
  if (!is_printable_text(table.version)) {
    throw PluginError("BAD_DESCRIPTOR", "its version must be printable ASCII that ends within " +
                                            std::to_string(RAL_NAME_BYTES) + " bytes");
  }
  if (expected_name != table.vendor) {
    throw PluginError("BAD_DESCRIPTOR", "the library says it is '" + std::string(table.vendor) + "', plugin.json '" +
                                            expected_name + "'");
  }
  if (table.init == nullptr || table.device_count == nullptr || table.describe == nullptr) {
    throw PluginError("BAD_ABI", "init, device_count and describe must not be NULL");
  }
  if ((table.reserve == nullptr) != (table.release == nullptr)) {
    throw PluginError("BAD_ABI", "reserve and release go together, one of them is NULL");
  }
}

void call_init(const ral_plugin& table, const ral_host* host) {
  std::array<char, 512> error{};
  const int status = contained("init", [&] { return table.init(host, error.data(), error.size()); });
  if (status != RAL_OK) {
    error.back() = '\0';
    throw PluginError("INIT_FAILED", error.front() != '\0' ? error.data() : "init() answers " + std::to_string(status));
  }
}

// All descriptors, before the vendor is one: a bad one refuses the whole plugin.
void check_devices(const PluginVendor& vendor) {
  const int count = vendor.device_count();
  for (int i = 0; i < count; ++i) {
    vendor.describe(i);
  }
}

const Vendor& load(const std::string& path, const std::string& expected_name) {
  Library library(path);
  const ral_plugin table = read_table(library);
  check_table(table, expected_name);
  if (Vendors::instance().find(expected_name) != nullptr) {
    throw PluginError("BAD_DESCRIPTOR", "there is a vendor '" + expected_name + "' in this process already");
  }
  const ral_host* host = make_host_table();
  library.keep();
  call_init(table, host);
  auto vendor = std::make_unique<PluginVendor>(table);
  try {
    check_devices(*vendor);
  } catch (const PluginError&) {
    if (table.shutdown != nullptr) {
      contained("shutdown", [&] {
        table.shutdown();
        return 0;
      });
    }
    throw;
  }
  const Vendor& added = *vendor;
  Vendors::instance().add(std::move(vendor));
  open_host_table(host, &added);
  return added;
}

}  // namespace

const Vendor& load_plugin(const std::string& library, const std::string& expected_name) {
  struct Loaded {
    std::mutex mutex;
    std::map<std::string, const Vendor*> by_library;
  };
  static Immortal<Loaded> storage;
  static Loaded* const loaded = storage.emplace();
  const std::lock_guard<std::mutex> lock(loaded->mutex);
  const auto found = loaded->by_library.find(library);
  if (found != loaded->by_library.end()) {
    return *found->second;
  }
  const Vendor& vendor = load(library, expected_name);
  loaded->by_library.emplace(library, &vendor);
  return vendor;
}

bool is_vendor_name(const std::string& name) {
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && lower(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return lower(c) || (c >= '0' && c <= '9') || c == '_'; });
}

// --- descriptors ---

ral_descriptor read_descriptor(const ral_descriptor& written) { return read_known(written); }

std::string descriptor_fault(const ral_descriptor& d) {
  constexpr std::uint32_t kFlags = RAL_HOST_ADDRESSABLE | RAL_VIRTUAL_CLOCK;
  constexpr std::uint32_t kPipelines = RAL_PIPELINE_COMPUTE | RAL_PIPELINE_COPY_IN | RAL_PIPELINE_COPY_OUT;
  if (d.struct_size < sizeof(ral_descriptor)) {
    return "its descriptor has " + std::to_string(d.struct_size) + " bytes, version 1.0 has " +
           std::to_string(sizeof(ral_descriptor));
  }
  if (!is_printable_text(d.name)) {
    return "name must be printable ASCII that ends within " + std::to_string(RAL_NAME_BYTES) + " bytes";
  }
  if (!is_power_of_two(d.alignment) || d.alignment > RAL_MAX_ALIGNMENT) {
    return "alignment is " + std::to_string(d.alignment) + ", it must be a power of two up to " +
           std::to_string(RAL_MAX_ALIGNMENT);
  }
  if (d.memory_bytes < d.alignment || d.memory_bytes > RAL_MAX_MEMORY_BYTES) {
    return "memory_bytes is " + std::to_string(d.memory_bytes) + ", it must be from the alignment to " +
           std::to_string(RAL_MAX_MEMORY_BYTES);
  }
  if (d.domains == 0 || d.domains > RAL_MAX_DOMAINS) {
    return "domains is " + std::to_string(d.domains) + ", it must be from 1 to " + std::to_string(RAL_MAX_DOMAINS);
  }
  if (d.domains > 1 && (!is_power_of_two(d.stripe_bytes) || d.stripe_bytes < d.alignment ||
                        d.stripe_bytes > d.memory_bytes / d.domains)) {
    return "stripe_bytes is " + std::to_string(d.stripe_bytes) +
           ", it must be a power of two from the alignment to one domain's memory";
  }
  if (d.max_handles_vf == 0 || d.max_handles_vf > d.max_handles_pf || d.max_handles_pf > RAL_MAX_HANDLES ||
      d.max_handles_vf < d.domains) {
    return "handles must be domains <= max_handles_vf <= max_handles_pf <= " + std::to_string(RAL_MAX_HANDLES) +
           ", they are " + std::to_string(d.max_handles_vf) + " and " + std::to_string(d.max_handles_pf);
  }
  if (d.dtypes == 0 || (d.dtypes & ~RAL_ALL_DTYPES) != 0) {
    return "dtypes must hold bits of ral_dtype and no others";
  }
  if ((d.flags & ~kFlags) != 0) {
    return "flags has unknown bits";
  }
  if ((d.pipelines & RAL_PIPELINE_COMPUTE) == 0 || (d.pipelines & ~kPipelines) != 0) {
    return "pipelines must hold RAL_PIPELINE_COMPUTE and no unknown bits";
  }
  if (d.preferred_layout > RAL_LAYOUT_NHWC) {
    return "preferred_layout is no ral_layout";
  }
  if (d.reserved != 0) {
    return "reserved must be 0";
  }
  return "";
}

VendorInfo to_vendor_info(const std::string& vendor, const ral_descriptor& d) {
  VendorInfo info;
  info.name = vendor;
  info.device_name = d.name;
  info.memory_bytes = d.memory_bytes;
  info.max_regions = d.max_handles_pf;
  info.max_regions_vf = d.max_handles_vf;
  info.alignment = d.alignment;
  info.domains = d.domains;
  info.stripe_bytes = d.domains > 1 ? d.stripe_bytes : info.stripe_bytes;
  info.host_addressable = (d.flags & RAL_HOST_ADDRESSABLE) != 0;
  info.dtypes = d.dtypes;
  info.preferred_layout = static_cast<ral_layout>(d.preferred_layout);
  info.pipelines = d.pipelines;
  info.model = {d.launch_ns, d.memory_bytes_per_s, d.copy_latency_ns, d.copy_bytes_per_s,
                (d.flags & RAL_VIRTUAL_CLOCK) != 0};
  return info;
}

}  // namespace ral
