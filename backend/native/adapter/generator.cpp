#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GeneratorImpl.h>

#include <utility>

#include "runtime.h"

namespace ral {

namespace {

class RalGenerator final : public c10::GeneratorImpl {
 public:
  RalGenerator(c10::DeviceIndex index, at::Generator inner)
      : GeneratorImpl({c10::DeviceType::PrivateUse1, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner_(std::move(inner)) {}

  const at::Generator& inner() const { return inner_; }

  void set_current_seed(std::uint64_t seed) override { settled().set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { settled().set_offset(offset); }
  std::uint64_t get_offset() const override { return settled().get_offset(); }
  std::uint64_t current_seed() const override { return inner_.current_seed(); }
  std::uint64_t seed() override { return settled().seed(); }
  void set_state(const c10::TensorImpl& state) override { settled().unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return settled().unsafeGetGeneratorImpl()->get_state();
  }

 private:
  // The base class hands the raw object to an intrusive_ptr: that is its contract, not an owner here.
  GeneratorImpl* clone_impl() const override { return new RalGenerator(device_.index(), settled().clone()); }

  // What is queued draws from it first: numbers come in the order of the program.
  const at::Generator& settled() const {
    if (Runtime::started() && !Runtime::bad_fork()) {
      Runtime::get().any_device(device_.index()).pipelines().synchronize();
    }
    return inner_;
  }
  at::Generator& settled() { return const_cast<at::Generator&>(std::as_const(*this).settled()); }

  at::Generator inner_;
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex index) {
  return at::make_generator<RalGenerator>(index, at::make_generator<at::CPUGeneratorImpl>(c10::default_rng_seed_val));
}

at::Generator cpu_generator_of(const at::Generator& generator) {
  const auto* ours = generator.defined() ? dynamic_cast<RalGenerator*>(generator.unsafeGetGeneratorImpl()) : nullptr;
  return ours != nullptr ? ours->inner() : generator;
}

}  // namespace ral
