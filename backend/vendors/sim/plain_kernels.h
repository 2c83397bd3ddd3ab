// Kernels that work on lists call these for each element.
#pragma once

#include "element.h"

RAL_KERNEL ral_sim_add(const ral_call* call);
RAL_KERNEL ral_sim_sub(const ral_call* call);
RAL_KERNEL ral_sim_mul(const ral_call* call);
RAL_KERNEL ral_sim_div(const ral_call* call);
RAL_KERNEL ral_sim_neg(const ral_call* call);
RAL_KERNEL ral_sim_abs(const ral_call* call);
RAL_KERNEL ral_sim_exp(const ral_call* call);
RAL_KERNEL ral_sim_sqrt(const ral_call* call);
RAL_KERNEL ral_sim_rsqrt(const ral_call* call);
RAL_KERNEL ral_sim_reciprocal(const ral_call* call);
RAL_KERNEL ral_sim_pow(const ral_call* call);
RAL_KERNEL ral_sim_maximum(const ral_call* call);
RAL_KERNEL ral_sim_minimum(const ral_call* call);
RAL_KERNEL ral_sim_lerp(const ral_call* call);
RAL_KERNEL ral_sim_zero(const ral_call* call);
RAL_KERNEL ral_sim_addcmul(const ral_call* call);
RAL_KERNEL ral_sim_addcdiv(const ral_call* call);
