// An object that is never destroyed: tensors may outlive every static destructor.
#pragma once

#include <new>
#include <utility>

namespace ral {

template <class T>
class Immortal {
 public:
  template <class... Arguments>
  T* emplace(Arguments&&... arguments) {
    return object_ = new (storage_) T(std::forward<Arguments>(arguments)...);
  }
  T* get() const { return object_; }

 private:
  alignas(T) unsigned char storage_[sizeof(T)];
  T* object_ = nullptr;
};

}  // namespace ral
