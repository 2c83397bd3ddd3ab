// Reading indices and plain numbers of a call.
#pragma once

#include "element.h"

namespace ral::sim {

// All numbers of an index tensor, in order. False: it is not of integers.
bool read_indices(const ral_tensor& t, std::vector<Index>* indices);

// A plain number as one element of the dtype (8 bytes of memory do for any). False: the dtype cannot hold it.
bool number_as(int dtype, const ral_value& value, std::uint8_t* memory);

}  // namespace ral::sim
