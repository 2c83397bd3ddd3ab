/* What a chip vendor implements, and what a vendor may ask of us: plain C, no torch, frozen for version 1.
 *
 * A plugin is one shared library with one entry, ral_plugin_entry(), that gives a table of functions (struct
 * ral_plugin), and with kernels, which kernel_manifest.json names (struct ral_call). docs/plugins.md goes through it.
 *
 * What "frozen" means: fields are only ever added at the end of a struct, with a new minor version. Every struct begins
 * with its size as its writer was compiled; the reader takes the smaller of that and its own, and what is missing is
 * zero. So a library that was built once keeps loading. Elements of arrays (ral_tensor, ral_value) never change.
 *
 * No function may throw or call longjmp across this boundary, and texts are ASCII.
 */
#ifndef RAL_PLUGIN_H
#define RAL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAL_PLUGIN_ABI_MAJOR 1u
#define RAL_PLUGIN_ABI_MINOR 1u
#define RAL_PLUGIN_ABI_VERSION (RAL_PLUGIN_ABI_MAJOR << 16 | RAL_PLUGIN_ABI_MINOR)

#if defined(__GNUC__)
#define RAL_PLUGIN_EXPORT __attribute__((visibility("default")))
#else
#define RAL_PLUGIN_EXPORT
#endif

/* --- results --- */

enum ral_status {
  RAL_OK = 0,
  RAL_DECLINED =
      1,          /* "not mine": nothing was written, `reason` says why, the router goes on to the next in its chain */
  RAL_FAILED = 2, /* an error of the program (an index out of range): `reason` becomes the exception's message */

  /* What the functions of struct ral_host answer; last_error() has the words. */
  RAL_ERROR_BAD_HOST = 16,        /* the first argument is not the table that init() was given */
  RAL_ERROR_BAD_ARGUMENT = 17,    /* a NULL where a result goes, a size of zero, a text that is none */
  RAL_ERROR_NO_DEVICE = 18,       /* no such device, or it was withdrawn */
  RAL_ERROR_NOT_READY = 19,       /* the process has not made its devices yet */
  RAL_ERROR_NO_SLOT = 20,         /* all device slots are taken */
  RAL_ERROR_BAD_DESCRIPTOR = 21,  /* a descriptor that contradicts itself */
  RAL_ERROR_OUT_OF_MEMORY = 22,   /* the device has no room for the block */
  RAL_ERROR_INVALID_POINTER = 23, /* not in any block in use */
  RAL_ERROR_OUT_OF_BOUNDS = 24,   /* begins in a block and ends beyond it */
  RAL_ERROR_USE_AFTER_FREE = 25,  /* the handle's buffer was freed */
  RAL_ERROR_WRONG_DEVICE = 26,    /* the block is another device's, or another plugin's */
  RAL_ERROR_INTERNAL = 27
};

/* --- a device --- */

/* The values are those of torch's ScalarType, so that no table is needed between the two. */
enum ral_dtype {
  RAL_UINT8 = 0,
  RAL_INT8 = 1,
  RAL_INT16 = 2,
  RAL_INT32 = 3,
  RAL_INT64 = 4,
  RAL_FLOAT16 = 5,
  RAL_FLOAT32 = 6,
  RAL_FLOAT64 = 7,
  RAL_BOOL = 11,
  RAL_BFLOAT16 = 15
};

#define RAL_DTYPE_BIT(dtype) (UINT64_C(1) << (dtype))
#define RAL_ALL_DTYPES UINT64_C(0x88ff)

enum ral_layout { RAL_LAYOUT_NCHW = 0, RAL_LAYOUT_NHWC = 1 };

/* Bits of ral_descriptor.pipelines: what the device can do at the same time. */
enum ral_pipeline { RAL_PIPELINE_COMPUTE = 1, RAL_PIPELINE_COPY_IN = 2, RAL_PIPELINE_COPY_OUT = 4 };

/* Bits of ral_descriptor.flags. */
enum ral_device_flag {
  RAL_HOST_ADDRESSABLE = 1, /* ATen's CPU kernels may work on the device's memory where it lies */
  RAL_VIRTUAL_CLOCK = 2     /* a model: device times come from the model below alone, and nothing waits for them */
};

#define RAL_NAME_BYTES 64

typedef struct ral_descriptor {
  uint32_t struct_size;
  uint32_t flags;            /* ral_device_flag */
  char name[RAL_NAME_BYTES]; /* printable ASCII, ended by NUL */
  uint64_t memory_bytes;
  uint64_t alignment;        /* of addresses and block sizes: a power of two, at most RAL_MAX_ALIGNMENT */
  uint64_t stripe_bytes;     /* where domains > 1: how much of a region lies in one domain before the next; a power of
                                two, at least the alignment */
  uint32_t max_handles_pf;   /* regions that the device can have as a physical function */
  uint32_t max_handles_vf;   /* the same as a virtual function; at most max_handles_pf */
  uint32_t domains;          /* memory domains that a region is striped over: 1 to RAL_MAX_DOMAINS */
  uint32_t preferred_layout; /* ral_layout */
  uint64_t dtypes;           /* RAL_DTYPE_BIT of each type that the device computes in */
  uint32_t pipelines;        /* ral_pipeline; RAL_PIPELINE_COMPUTE at least */
  uint32_t reserved;         /* 0 */
  /* What work takes where the device is a model. A real device has all zeros: work takes as long as it takes. */
  uint64_t launch_ns;          /* of each kernel, before it begins to move bytes */
  uint64_t memory_bytes_per_s; /* of a kernel's arguments and results; 0: no limit */
  uint64_t copy_latency_ns;    /* of each copy */
  uint64_t copy_bytes_per_s;   /* of the link to the host and to other devices; 0: no limit */
} ral_descriptor;

#define RAL_MAX_ALIGNMENT UINT64_C(4096)
#define RAL_MAX_DOMAINS 64u
#define RAL_MAX_HANDLES 65536u
#define RAL_MAX_MEMORY_BYTES (UINT64_C(1) << 46)

/* A range of device memory. Of several domains, `handle` is the first one's share, handle + 1 the second one's, and so
 * on. The address is one of this process, real or reserved: torch adds offsets to it. */
typedef struct ral_region {
  uint32_t struct_size;
  uint32_t domain;
  uint64_t handle;
  uint64_t address;
  uint64_t length;
} ral_region;

/* --- what we give to a plugin --- */

enum ral_log_level { RAL_LOG_DEBUG = 0, RAL_LOG_INFO = 1, RAL_LOG_WARNING = 2, RAL_LOG_ERROR = 3 };

/* Every function takes the table itself first, so that we know which plugin asks; all may be called from any thread from
 * the end of init() on, and answer with a ral_status. A buffer is a handle and never a pointer: one that was freed is
 * recognised. */
typedef struct ral_host {
  uint32_t struct_size;
  uint32_t abi_version;
  /* Hot-plug: a device has come. `index` is the plugin's own number for it, which reserve(), release() and copy() will
   * be called with; `*device` becomes ours, N of ral:N. */
  int (*announce)(const struct ral_host* host, int32_t index, const ral_descriptor* descriptor, int32_t* device);
  /* It has gone, `reason` says why. Its memory stays mapped until tensors let go of it; using them is an error. */
  int (*withdraw)(const struct ral_host* host, int32_t device, const char* reason);
  int (*log)(const struct ral_host* host, int32_t level, const char* text);
  /* Memory of one of the plugin's devices, `device` as in ral:N. */
  int (*alloc)(const struct ral_host* host, int32_t device, uint64_t bytes, uint64_t* buffer, uint64_t* address);
  int (*free)(const struct ral_host* host, uint64_t buffer);
  /* Between two buffers of host-addressable or mapped memory; offsets and length in bytes. */
  int (*copy)(const struct ral_host* host, uint64_t to, uint64_t to_offset, uint64_t from, uint64_t from_offset,
              uint64_t bytes);
  /* May a kernel of the device touch these bytes? */
  int (*check)(const struct ral_host* host, int32_t device, uint64_t address, uint64_t bytes);
  /* The calling thread's last error in words; valid until its next call. Never NULL. */
  const char* (*last_error)(const struct ral_host* host);
} ral_host;

/* --- what a plugin gives to us --- */

enum ral_direction { RAL_HOST_TO_DEVICE = 0, RAL_DEVICE_TO_HOST = 1, RAL_DEVICE_TO_DEVICE = 2 };

typedef struct ral_plugin {
  uint32_t struct_size;
  uint32_t abi_version;        /* RAL_PLUGIN_ABI_VERSION as the plugin was compiled */
  char vendor[RAL_NAME_BYTES]; /* a lower-case letter, then letters, digits, _ ; as in plugin.json and RAL_DEVICES */
  char version[RAL_NAME_BYTES];
  /* Called once, before anything else. Not RAL_OK: `error` has the reason, and the plugin is not used. `host` stays
   * valid for as long as the process lives. */
  int (*init)(const ral_host* host, char* error, size_t error_size);
  /* After an init() that went well, when the plugin is refused all the same. May be NULL. */
  void (*shutdown)(void);
  /* How many devices there are now; those that come later are announced. 0 is a good answer. */
  int (*device_count)(void);
  /* Fills what fits into descriptor->struct_size, and sets that to its own size where that is smaller. */
  int (*describe)(int32_t index, ral_descriptor* descriptor);

  /* Since 1.1, each may be NULL. */

  /* Device memory; without these two it is mapped on the host. Not RAL_OK: there is no such range left. */
  int (*reserve)(int32_t index, uint64_t length, ral_region* region);
  void (*release)(int32_t index, const ral_region* region);
  /* Moves bytes to or from the device's memory; without it they are copied through its addresses. */
  int (*copy)(int32_t index, int32_t direction, uint64_t to, uint64_t from, uint64_t bytes);
} ral_plugin;

/* What version 1.0 ended with: a table that is shorter is no plugin. */
#define RAL_PLUGIN_SIZE_1_0 offsetof(ral_plugin, reserve)

typedef const ral_plugin* (*ral_plugin_entry_function)(void);
#define RAL_PLUGIN_ENTRY "ral_plugin_entry"
/* The one function that the library must export. */
RAL_PLUGIN_EXPORT const ral_plugin* ral_plugin_entry(void);

/* --- kernels: one call is one operator with its arguments in schema order ---
 *
 * The functional, the in-place and the out= variant of an operator look the same to a kernel: `args` holds the schema's
 * arguments without out=, `outputs` the tensors to write. In place means that outputs[0] and args[0] share their data.
 */

#define RAL_MAX_DIMS 64

/* Sizes and strides are counted in elements; `data` already includes the storage offset. */
typedef struct ral_tensor {
  void* data;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t ndim;
  int32_t dtype;
} ral_tensor;

enum ral_tag {
  RAL_NONE = 0,    /* an optional argument that was not given */
  RAL_TENSOR = 1,  /* tensors, count == 1 */
  RAL_TENSORS = 2, /* tensors; one that is not given has data == NULL and ndim == -1 */
  RAL_INT = 3,     /* also bool (0 or 1), a dtype, a layout or a memory format */
  RAL_DOUBLE = 4,
  RAL_INTS = 5, /* also bool[] */
  RAL_DOUBLES = 6,
  RAL_TEXT = 7
};

typedef struct ral_value {
  int32_t tag;
  int32_t count;
  union {
    int64_t i;
    double d;
    const ral_tensor* tensors;
    const int64_t* ints;
    const double* doubles;
    const char* text;
  } as;
} ral_value;

typedef struct ral_call {
  uint32_t struct_size;
  int32_t arg_count;
  int32_t output_count;
  const char* op; /* "aten::add.out": what reached the router */
  const ral_value* args;
  ral_tensor* outputs; /* one that is not wanted has data == NULL and ndim == -1 */
  char* reason;
  size_t reason_size;
} ral_call;

typedef int (*ral_kernel)(const ral_call* call);

#ifdef __cplusplus
}
#endif

#endif
