// A vendor's kernel: the call translated to the plain C of ral_plugin.h, on the worker that runs it.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy_ops.h>

#include <algorithm>
#include <array>

#include "layout_rules.h"
#include "ral_plugin.h"
#include "run.h"

namespace ral {

namespace {

constexpr ral_tensor kNoTensor = {nullptr, nullptr, nullptr, -1, 0};

// The arguments and outputs of a call in C. Arrays are filled first and pointed to at the end: they move while they
// grow.
class CallInC {
 public:
  explicit CallInC(const Call& call) : call_(call) {}

  // False: an argument has no form in C; `reason` says which.
  bool add_arguments(std::string* reason) {
    for (const TensorDesc& desc : call_.tensors()) {
      tensors_.push_back(in_c(desc));
    }
    std::size_t next = 0;
    auto spec = call_.op().arguments().begin();
    for (std::size_t i = 0; i < call_.values().size(); ++i) {
      const bool special = spec != call_.op().arguments().end() && spec->position == i;
      const bool of_tensors = special && is_of_tensors(*spec);
      const std::size_t count = of_tensors && call_.values()[i].isInt() ? call_.values()[i].toInt() : 0;
      const bool out = special && spec->out;
      if (!out && !(of_tensors ? add_tensors(*spec, call_.values()[i], next, count, reason)
                               : add_value(call_.values()[i], reason))) {
        return false;
      }
      next += count;
      spec += special ? 1 : 0;
    }
    return true;
  }

  void add_outputs(const Layout& layout, c10::ArrayRef<HandOut::Place> places) {
    first_output_ = tensors_.size();
    if (!call_.op().outputs().empty()) {
      call_.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
        const auto& outputs = call_.op().outputs();
        for (std::size_t i = first; i < first + count; ++i) {
          if (std::find(outputs.begin(), outputs.end(), spec.position) != outputs.end()) {
            tensors_.push_back(in_c(call_.tensors()[i]));
          }
        }
      });
      return;
    }
    for (const TensorLayout& output : layout.tensors) {
      if (output.from != TensorLayout::From::kFresh) {
        tensors_.push_back(kNoTensor);
        continue;
      }
      char* data = static_cast<char*>(places[output.source].data);
      tensors_.push_back({data + output.offset * static_cast<std::int64_t>(c10::elementSize(output.dtype)),
                          output.sizes.data(), output.strides.data(), static_cast<std::int32_t>(output.sizes.size()),
                          static_cast<std::int32_t>(output.dtype)});
    }
  }

  ral_call finish(const char* op) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      ral_value& value = values_[i];
      if (value.tag == RAL_TENSOR || value.tag == RAL_TENSORS) {
        value.as.tensors = tensors_.data() + starts_[i];
      } else if (value.tag == RAL_INTS) {
        value.as.ints = ints_.data() + starts_[i];
      } else if (value.tag == RAL_DOUBLES) {
        value.as.doubles = doubles_.data() + starts_[i];
      }
    }
    return {sizeof(ral_call),
            static_cast<std::int32_t>(values_.size()),
            static_cast<std::int32_t>(tensors_.size() - first_output_),
            op,
            values_.data(),
            tensors_.data() + first_output_,
            nullptr,
            0};
  }

 private:
  static bool is_of_tensors(const ArgSpec& spec) {
    return spec.kind != ArgKind::kGenerator && spec.kind != ArgKind::kDevice;
  }

  ral_tensor in_c(const TensorDesc& desc) const {
    if (desc.where != TensorDesc::Where::kDevice) {
      return kNoTensor;
    }
    char* data = static_cast<char*>(desc.data);
    return {data + desc.offset * static_cast<std::int64_t>(c10::elementSize(desc.dtype)), call_.sizes(desc).data(),
            call_.strides(desc).data(), desc.rank, static_cast<std::int32_t>(desc.dtype)};
  }

  ral_value& begin(ral_tag tag, std::size_t start, std::size_t count) {
    starts_.push_back(start);
    ral_value& value = values_.emplace_back();
    value.tag = tag;
    value.count = static_cast<std::int32_t>(count);
    return value;
  }

  bool add_tensors(const ArgSpec& spec, const c10::IValue& given, std::size_t first, std::size_t count,
                   std::string* reason) {
    if (!given.isInt()) {
      begin(RAL_NONE, 0, 0);
      return true;
    }
    for (std::size_t i = first; i < first + count; ++i) {
      const TensorDesc& desc = call_.tensors()[i];
      if (desc.where == TensorDesc::Where::kHost && spec.kind == ArgKind::kTensor && desc.rank == 0) {
        return add_number(call_.host_tensors()[desc.shape], reason);
      }
      if (desc.where == TensorDesc::Where::kHost) {
        *reason = "a tensor that is not on the device";
        return false;
      }
    }
    const bool none = spec.kind == ArgKind::kTensor && call_.tensors()[first].where == TensorDesc::Where::kUndefined;
    begin(none ? RAL_NONE : spec.kind == ArgKind::kTensor ? RAL_TENSOR : RAL_TENSORS, first, count);
    return true;
  }

  // A number from the host (`x + 2`) is a number to the kernel too.
  bool add_number(const at::Tensor& tensor, std::string* reason) {
    const c10::ScalarType type = tensor.scalar_type();
    if (c10::isIntegralType(type, /*includeBool=*/true)) {
      begin(RAL_INT, 0, 1).as.i = tensor.item().toLong();
    } else if (c10::isFloatingType(type)) {
      begin(RAL_DOUBLE, 0, 1).as.d = tensor.item().toDouble();
    } else {
      *reason = "a number that is neither integer nor floating point";
      return false;
    }
    return true;
  }

  bool add_value(const c10::IValue& value, std::string* reason) {
    if (value.isNone()) {
      begin(RAL_NONE, 0, 0);
    } else if (value.isInt() || value.isBool()) {
      begin(RAL_INT, 0, 1).as.i = value.isInt() ? value.toInt() : static_cast<std::int64_t>(value.toBool());
    } else if (value.isDouble()) {
      begin(RAL_DOUBLE, 0, 1).as.d = value.toDouble();
    } else if (value.isString()) {
      begin(RAL_TEXT, 0, 1).as.text = value.toStringRef().c_str();
    } else if (!value.isList() || !add_list(value)) {
      *reason = "an argument of type " + value.tagKind();
      return false;
    }
    return true;
  }

  // Numbers of any kind are floating point to a kernel, as a whole list.
  bool add_list(const c10::IValue& value) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    const bool numbers = value.type()->expectRef<c10::ListType>().getElementType() == c10::NumberType::get();
    const auto whole = [](const c10::IValue& v) { return v.isInt() || v.isBool(); };
    if (!numbers && std::all_of(list.begin(), list.end(), whole)) {
      begin(RAL_INTS, ints_.size(), list.size());
      for (const c10::IValue& element : list) {
        ints_.push_back(element.isInt() ? element.toInt() : static_cast<std::int64_t>(element.toBool()));
      }
      return true;
    }
    if (!std::all_of(list.begin(), list.end(), [&](const auto& v) { return v.isDouble() || whole(v); })) {
      return false;
    }
    begin(RAL_DOUBLES, doubles_.size(), list.size());
    for (const c10::IValue& element : list) {
      doubles_.push_back(element.isDouble() ? element.toDouble()
                         : element.isInt()  ? static_cast<double>(element.toInt())
                                            : static_cast<double>(element.toBool()));
    }
    return true;
  }

  const Call& call_;
  c10::SmallVector<ral_value, 12> values_;
  c10::SmallVector<std::size_t, 12> starts_;
  c10::SmallVector<ral_tensor, 12> tensors_;  // those of the call, then the outputs
  c10::SmallVector<std::int64_t, 8> ints_;
  c10::SmallVector<double, 4> doubles_;
  std::size_t first_output_ = 0;
};

// How a kernel's run ended, for a thread that waits for it.
struct Verdict {
  std::optional<Call> call;
  int status = RAL_OK;
  std::string reason;
  std::exception_ptr error;
};

class KernelWork final : public Work {
 public:
  KernelWork(Call&& call, std::shared_ptr<const Plan> plan, c10::SmallVector<HandOut::Place, 2>&& places,
             const events::Launch& launch, Verdict* verdict)
      : Work(WorkKind::kCompute, Pipeline::kCompute, launch.name()),
        call_(std::move(call)),
        plan_(std::move(plan)),
        places_(std::move(places)),
        bytes_(call_.bytes() + (call_.op().outputs().empty() ? fresh_bytes(*plan_->layout) : 0)),
        started_(launch),
        verdict_(verdict) {
    site = launch.site();
  }

  void run() override {
    std::string reason;
    if (verdict_ == nullptr) {
      status_ = call_kernel(&reason);
      if (status_ == RAL_FAILED) {
        throw std::runtime_error(reason);
      }
      if (status_ != RAL_OK) {
        plan_->may_decline.store(true, std::memory_order_relaxed);
        plan_->decision->set_refused("native: kernel declined (" + reason + ")");
        run_on_copies();
      }
      return;
    }
    try {
      status_ = call_kernel(&reason);
    } catch (...) {  // it belongs to the thread that waits
      verdict_->error = std::current_exception();
      status_ = RAL_FAILED;
    }
    verdict_->status = status_;
    verdict_->reason = std::move(reason);
    if (status_ == RAL_DECLINED) {
      verdict_->call.emplace(std::move(call_));
    }
  }

  void ended(const Times& times) noexcept override {
    if (started_.active() && status_ == RAL_OK) {
      started_.work(trace::Kind::kKernel, times.start_ticks, times.end_ticks, bytes_,
                    plan_->decision->kernel->name().id(), call_.device().vendor_name().id());
    } else if (started_.active() && status_ == RAL_DECLINED && verdict_ == nullptr) {
      static const events::Name late("native: kernel declined these values");
      started_.work(trace::Kind::kFallback, times.start_ticks, times.end_ticks, bytes_, call_.op().name().id(),
                    late.id());
    }
  }

  std::uint64_t model_ns(const DeviceModel& model) const noexcept override {
    return status_ == RAL_OK ? model.kernel_ns(static_cast<std::uint64_t>(bytes_)) : 0;
  }
  std::string what() const override { return call_.op().name().text(); }

 private:
  int call_kernel(std::string* reason) {
    CallInC in_c(call_);
    if (!in_c.add_arguments(reason)) {
      return RAL_DECLINED;
    }
    in_c.add_outputs(*plan_->layout, places_);
    std::array<char, 256> text;
    text.front() = '\0';
    ral_call call = in_c.finish(call_.op().name().text().c_str());
    call.reason = text.data();
    call.reason_size = text.size();
    const int status = plan_->decision->kernel->function()(&call);
    if (status != RAL_OK) {
      text.back() = '\0';
      *reason = text.front() != '\0' ? text.data() : "no reason given";
    }
    return status;
  }

  // The kernel took the first call that looked like this one and declines this one, when nobody waits any more: PyTorch's
  // CPU kernel does it here, on copies as everywhere else.
  void run_on_copies() {
    CallAliases copies(call_);
    copies.detach();
    Stack stack = copies.stack();
    call_.op().cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    copies.write_back();
    plan_->decision->fallbacks.fetch_add(1, std::memory_order_relaxed);
    plan_->decision->bytes_copied.fetch_add(static_cast<std::uint64_t>(bytes_), std::memory_order_relaxed);
    settle(*plan_->layout, stack, places_);
  }

  Call call_;
  std::shared_ptr<const Plan> plan_;
  c10::SmallVector<HandOut::Place, 2> places_;
  std::int64_t bytes_;
  events::Started started_;
  Verdict* verdict_;
  int status_ = RAL_OK;
};

}  // namespace

std::shared_ptr<const Plan> plan_native(const Call& call, const Decision& decision, std::string* reason) {
  if (call.has_lazy_tensors()) {
    *reason = "layout: a conjugation or negation that is not carried out";
    return nullptr;
  }
  auto plan = std::make_shared<Plan>();
  plan->route = Route::kNative;
  plan->decision = &decision;
  plan->generation = decision.generation;
  plan->layout = layout_without_running(call);
  if (!plan->layout.has_value()) {
    *reason = "what comes out depends on the data";
    return nullptr;
  }
  if (writes_into_what_it_reads(call)) {
    refuse_as_the_cpu_does(call);  // on copies it would not
    *reason = "layout: an output overlaps itself or part of an input";
    return nullptr;
  }
  plan->may_decline.store(true);  // until its first run has shown that it does not
  return plan;
}

bool run_native(Call& call, const std::shared_ptr<const Plan>& plan, Stack& stack, const events::Launch& launch,
                std::string* reason) {
  const Operator& op = call.op();
  Stream& stream = call.device().current_stream();
  Results results = make_results(*plan->layout, call, stack);
  if (!plan->may_decline.load(std::memory_order_relaxed)) {
    stream.submit<KernelWork>(std::move(call), plan, std::move(results.places), launch, nullptr);
    put_results(op, stack, std::move(results.values));
    return true;
  }
  Verdict verdict;
  Device& device = call.device();
  {
    const events::Wait waiting(launch, device.index());
    wait_for_trial(device,
                   stream.submit<KernelWork>(std::move(call), plan, std::move(results.places), launch, &verdict));
  }
  if (verdict.error != nullptr) {
    std::rethrow_exception(verdict.error);
  }
  TORCH_CHECK(verdict.status != RAL_FAILED, op.name().text(), " on ", device.torch_device(), ": ", verdict.reason);
  if (verdict.status != RAL_OK) {
    call = std::move(*verdict.call);
    *reason = verdict.reason;
    return false;
  }
  put_results(op, stack, std::move(results.values));
  return true;
}

}  // namespace ral
