// An element of the memory that a kernel of the emulator sees: a proxy whose accesses are checked.
#pragma once

namespace dspark {

// An element of checked memory; kOnAccess is told of every access before it happens. Converts to
// its value and takes assignments, only as a temporary: `auto x = p[i]` followed by a use of x does
// not compile, write the type of x.
template <class T, void (*kOnAccess)(const void*, int, int, bool)>
class CheckedElement {
  public:
    explicit CheckedElement(T* address) : address_(address) {}
    CheckedElement(const CheckedElement&) = delete;

    operator T() && {
        kOnAccess(address_, sizeof(T), alignof(T), false);
        return *address_;
    }
    T operator=(T value) && {
        kOnAccess(address_, sizeof(T), alignof(T), true);
        *address_ = value;
        return value;
    }
    T operator=(CheckedElement&& other) && {
        return CheckedElement(address_) = static_cast<T>(static_cast<CheckedElement&&>(other));
    }
    T operator+=(T value) && { return update(get() + value); }
    T operator-=(T value) && { return update(get() - value); }
    T operator*=(T value) && { return update(get() * value); }
    T operator|=(T value) && { return update(get() | value); }
    T operator&=(T value) && { return update(get() & value); }

  private:
    T get() const { return CheckedElement(address_); }
    template <class U>
    T update(U value) const {
        return CheckedElement(address_) = static_cast<T>(value);
    }
    T* address_;
};

}  // namespace dspark
