// Compiled once, before every file of the adapter: what most of them include anyway. Only for the time that it saves;
// each file still includes what it uses.
#ifndef RAL_ADAPTER_PREFIX_H  // not #pragma once: here the header is a file of its own
#define RAL_ADAPTER_PREFIX_H

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <vector>

#endif
