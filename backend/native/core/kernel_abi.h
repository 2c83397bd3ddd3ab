/* How the router calls a vendor's kernel: plain C, no torch. One call is one operator with its arguments in schema
 * order.
 *
 * The functional, the in-place and the out= variant of an operator look the same to a kernel: `args` holds the schema's
 * arguments without out=, `outputs` the tensors to write. In place means that outputs[0] and args[0] share their data.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAL_KERNEL_ABI_VERSION 1u
#define RAL_MAX_DIMS 64

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

enum ral_status {
  RAL_OK = 0,
  RAL_DECLINED =
      1,         /* "not mine": nothing was written, `reason` says why, the router goes on to the next in its chain */
  RAL_FAILED = 2 /* an error of the program (an index out of range): `reason` becomes the exception's message */
};

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
