#include "host_table.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "hotplug.h"
#include "immortal.h"
#include "plugins.h"
#include "secure.h"

namespace ral {

namespace {

std::atomic<HotPlug*> hot_plug{nullptr};

struct Table {
  ral_host host{};
  const Vendor* vendor = nullptr;  // nullptr: its init() has not ended well yet
};

// Which tables there are. A pointer that a plugin hands in is looked up here before anything behind it is read.
class Tables {
 public:
  static Tables& instance() {
    static Immortal<Tables> storage;
    static Tables* const tables = storage.emplace();
    return *tables;
  }
  Table& make() {
    const std::lock_guard<std::mutex> lock(mutex_);
    tables_.push_back(std::make_unique<Table>());
    return *tables_.back();
  }
  void open(const ral_host* host, const Vendor* vendor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& table : tables_) {
      if (&table->host == host) {
        table->vendor = vendor;
      }
    }
  }
  bool find(const ral_host* host, const Vendor** vendor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& table : tables_) {
      if (&table->host == host) {
        *vendor = table->vendor;
        return true;
      }
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Table>> tables_;
};

constexpr std::size_t kErrorBytes = 512;
thread_local std::array<char, kErrorBytes> last_error_text;

int answer(const Verdict& verdict) noexcept {
  std::snprintf(last_error_text.data(), last_error_text.size(), "%s", verdict.text.c_str());
  return verdict.code;
}

// Runs `body(vendor)`, which gives a Verdict, for the plugin whose table this is. Plain C is on the other side: nothing
// may leave by an exception, whatever it is.
template <class Body>
int guarded(const ral_host* host, Body&& body) noexcept {
  try {
    const Vendor* vendor = nullptr;
    if (!Tables::instance().find(host, &vendor)) {
      return answer(refusal(RAL_ERROR_BAD_HOST, "the first argument must be the table that init() was given"));
    }
    if (vendor == nullptr) {
      return answer(refusal(RAL_ERROR_NOT_READY, "call it after init() has returned"));
    }
    return answer(body(*vendor));
  } catch (const std::exception& error) {
    std::snprintf(last_error_text.data(), last_error_text.size(), "RAL_ERROR_INTERNAL: %s", error.what());
    return RAL_ERROR_INTERNAL;
  }
}

// A text of a plugin as far as it is fit to show: one line, printable, not too long. No text: what stands in for it.
std::string shown(const char* text, const char* otherwise) {
  if (text == nullptr) {
    return otherwise;
  }
  constexpr std::size_t kMaxShown = 400;
  std::string result(text, strnlen(text, kMaxShown));
  for (char& c : result) {
    c = c < ' ' || c > '~' ? '?' : c;
  }
  return result.empty() ? otherwise : result;
}

int announce(const ral_host* host, std::int32_t index, const ral_descriptor* descriptor, std::int32_t* device) {
  return guarded(host, [&](const Vendor& vendor) -> Verdict {
    if (descriptor == nullptr || device == nullptr) {
      return refusal(RAL_ERROR_BAD_ARGUMENT, "announce: descriptor and device must not be NULL");
    }
    HotPlug* runtime = HotPlug::receiver();
    if (runtime == nullptr) {
      return refusal(RAL_ERROR_NOT_READY, "announce: this process has not made its devices yet; try again later");
    }
    const ral_descriptor known = read_descriptor(*descriptor);
    if (const std::string fault = descriptor_fault(known); !fault.empty()) {
      return refusal(RAL_ERROR_BAD_DESCRIPTOR, "announce: " + fault);
    }
    try {
      *device = runtime->announce(vendor, index, to_vendor_info(vendor.name(), known));
    } catch (const NoFreeSlot& error) {
      return refusal(RAL_ERROR_NO_SLOT, error.what());
    }
    return {};
  });
}

int withdraw(const ral_host* host, std::int32_t device, const char* reason) {
  return guarded(host, [&](const Vendor& vendor) -> Verdict {
    HotPlug* runtime = HotPlug::receiver();
    if (runtime == nullptr || !runtime->withdraw(vendor, device, shown(reason, "no reason given"))) {
      return refusal(RAL_ERROR_NO_DEVICE, "withdraw: ral:" + std::to_string(device) + " is no device of " +
                                              vendor.name() + " that is online");
    }
    return {};
  });
}

int log(const ral_host* host, std::int32_t level, const char* text) {
  return guarded(host, [&](const Vendor& vendor) -> Verdict {
    constexpr std::array<const char*, 4> kLevels = {"debug", "info", "warning", "error"};
    if (level < RAL_LOG_DEBUG || level > RAL_LOG_ERROR || text == nullptr) {
      return refusal(RAL_ERROR_BAD_ARGUMENT, "log: level must be a ral_log_level, text not NULL");
    }
    if (level >= RAL_LOG_WARNING) {
      std::fprintf(stderr, "ral: %s: %s: %s\n", vendor.name().c_str(), kLevels[static_cast<std::size_t>(level)],
                   shown(text, "").c_str());
    }
    return {};
  });
}

int alloc(const ral_host* host, std::int32_t device, std::uint64_t bytes, std::uint64_t* buffer,
          std::uint64_t* address) {
  return guarded(host, [&](const Vendor& vendor) -> Verdict {
    if (buffer == nullptr || address == nullptr) {
      return refusal(RAL_ERROR_BAD_ARGUMENT, "alloc: buffer and address must not be NULL");
    }
    SecureContext::Buffer made;
    Verdict verdict = SecureContext::instance().allocate(vendor, device, bytes, &made);
    *buffer = made.handle;
    *address = made.address;
    return verdict;
  });
}

int free_buffer(const ral_host* host, std::uint64_t buffer) {
  return guarded(host, [&](const Vendor& vendor) { return SecureContext::instance().free(vendor, buffer); });
}

int copy(const ral_host* host, std::uint64_t to, std::uint64_t to_offset, std::uint64_t from, std::uint64_t from_offset,
         std::uint64_t bytes) {
  return guarded(host, [&](const Vendor& vendor) {
    return SecureContext::instance().copy(vendor, to, to_offset, from, from_offset, bytes);
  });
}

int check(const ral_host* host, std::int32_t device, std::uint64_t address, std::uint64_t bytes) {
  return guarded(host, [&](const Vendor&) { return SecureContext::instance().check(device, address, bytes); });
}

const char* last_error(const ral_host* host) {
  (void)host;
  return last_error_text.data();
}

}  // namespace

HotPlug* HotPlug::receiver() noexcept { return hot_plug.load(std::memory_order_acquire); }
void HotPlug::set(HotPlug* receiver) noexcept { hot_plug.store(receiver, std::memory_order_release); }

const ral_host* make_host_table() {
  Table& table = Tables::instance().make();
  table.host = {sizeof(ral_host), RAL_PLUGIN_ABI_VERSION, &announce, &withdraw, &log,
                &alloc,           &free_buffer,           &copy,     &check,    &last_error};
  return &table.host;
}

void open_host_table(const ral_host* table, const Vendor* vendor) { Tables::instance().open(table, vendor); }

}  // namespace ral
