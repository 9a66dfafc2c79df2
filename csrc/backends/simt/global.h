// Device memory as kernels of the emulator see it: a pointer whose element accesses are checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backends/simt/element.h"
#include "backends/simt/emulator.h"

namespace dspark {

template <class T>
class Global;

template <class T>
using GlobalElement = CheckedElement<T, emulator::on_global>;

namespace emulator {

template <class T>
T load_global(const T* address) {
    on_global(address, sizeof(T), alignof(T), false);
    return *address;
}

// Holds the copy that p->field reads from.
template <class T>
struct Loaded {
    T value;
    const T* operator->() const { return &value; }
};

// Differences that depend on whether there are elements at all, and whether they can be stored to.
template <class T>
struct GlobalElements {
    using Reference = GlobalElement<T>;
    static Reference at(T* address) { return Reference(address); }
    static constexpr std::ptrdiff_t kSize = sizeof(T);
};
template <class T>
struct GlobalElements<const T> {
    using Reference = T;
    static Reference at(const T* address) { return load_global(address); }
    static constexpr std::ptrdiff_t kSize = sizeof(T);
};
template <>
struct GlobalElements<void> {
    using Reference = void;
};
template <>
struct GlobalElements<const void> {
    using Reference = void;
};

}  // namespace emulator

// Pointer to device memory: 8 bytes, a plain pointer in layout, so that argument structs are the
// same bytes on every backend.
template <class T>
class Global {
    using Elements = emulator::GlobalElements<T>;
    using Value = std::remove_const_t<T>;

  public:
    using Reference = typename Elements::Reference;

    Global() = default;
    Global(std::nullptr_t) : address_(nullptr) {}
    Global(T* address) : address_(address) {}
    // Global<T> -> Global<const T>, Global<void>, as plain pointers convert.
    template <class U, class = std::enable_if_t<std::is_convertible_v<U*, T*>>>
    Global(Global<U> other) : address_(other.address()) {}

    // The address as a number or for a cast; reading through it is not checked.
    T* address() const { return address_; }

    template <class I, class R = Reference, class = std::enable_if_t<!std::is_void_v<R>>>
    R operator[](I i) const {
        return Elements::at(address_ + i);
    }
    template <class R = Reference, class = std::enable_if_t<!std::is_void_v<R>>>
    R operator*() const {
        return Elements::at(address_);
    }
    template <class U = Value, class = std::enable_if_t<!std::is_void_v<U>>>
    emulator::Loaded<U> operator->() const {
        return {emulator::load_global<U>(address_)};
    }

    explicit operator bool() const { return address_ != nullptr; }
    Global& operator+=(std::ptrdiff_t n) { return *this = *this + n; }
    Global& operator-=(std::ptrdiff_t n) { return *this = *this - n; }
    Global& operator++() { return *this += 1; }

    // In integers, because the emulator also meets addresses outside of any object.
    friend Global operator+(Global p, std::ptrdiff_t n) {
        const uintptr_t offset = static_cast<uintptr_t>(n * Elements::kSize);
        return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p.address_) + offset);
    }
    friend Global operator+(std::ptrdiff_t n, Global p) { return p + n; }
    friend Global operator-(Global p, std::ptrdiff_t n) { return p + -n; }
    friend std::ptrdiff_t operator-(Global a, Global b) { return a.address_ - b.address_; }
    friend bool operator==(Global a, Global b) { return a.address_ == b.address_; }
    friend bool operator!=(Global a, Global b) { return a.address_ != b.address_; }
    friend bool operator<(Global a, Global b) { return a.address_ < b.address_; }

  private:
    T* address_;
};

template <class To, class From>
Global<To> global_cast(Global<From> from) {
    static_assert(std::is_const_v<To> || !std::is_const_v<From>, "this cast drops const");
    return reinterpret_cast<To*>(from.address());
}
template <class To, class From>
Global<To> global_cast(From* from) {
    return global_cast<To>(Global<From>(from));
}

static_assert(sizeof(Global<float>) == 8 && std::is_trivially_copyable_v<Global<float>>);

}  // namespace dspark
