// A pretended accelerator for PyTorch, a PrivateUse1 backend that is called `sim`.
//
// Its memory is the host's and its kernels are the CPU's, run on aliases of that memory, so float32 results are the
// CPU's bit for bit. What makes it an accelerator: every operation refuses tensors of two devices, as CUDA does, a
// value gets to the host by a copy only, and memory has a limit. Copies, operations and memory are counted.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using c10::SymIntArrayRef;
using OptionalTensor = std::optional<Tensor>;

constexpr auto SIM = c10::DeviceType::PrivateUse1;

thread_local DeviceIndex current = 0;

std::mutex lock;  // guards all counts below
std::map<std::string, long> calls;
bool counting = false;
long to_device = 0, to_host = 0, live = 0, peak = 0, limit = 16L << 30;

// Two devices, or as many as CUDA_VISIBLE_DEVICES names: Ray shares GPUs out through that variable.
DeviceIndex device_count() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) return 2;
  return *visible ? 1 + std::count(visible, visible + std::strlen(visible), ',') : 0;
}

void note(const std::string& name) {
  std::lock_guard<std::mutex> guard(lock);
  if (counting) calls[name]++;
}

// ---- devices and memory ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return SIM; }
  Device exchangeDevice(Device device) const override {
    Device before(SIM, current);
    uncheckedSetDevice(device);
    return before;
  }
  Device getDevice() const override { return {SIM, current}; }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::Stream getStream(Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Block {
  void* data;
  long bytes;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    std::lock_guard<std::mutex> guard(lock);
    live -= block->bytes;
  }
  std::free(block->data);
  delete block;
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const long bytes = static_cast<long>(size);
    {
      std::lock_guard<std::mutex> guard(lock);
      TORCH_CHECK_WITH(OutOfMemoryError, live + bytes <= limit, "sim out of memory. Tried to allocate ", bytes, " B. ");
      live += bytes;
      peak = std::max(peak, live);
    }
    void* data = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {data, new Block{data, bytes}, &release, Device(SIM, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
} memory;
REGISTER_ALLOCATOR(SIM, &memory);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
  Device getDeviceFromPtr(void*) const override { return {SIM, current}; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = memory.allocate(bytes);
    if (storage.data() && bytes) std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ---- the two sides of a tensor ----

bool on_sim(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == SIM; }

// The same memory, seen by the CPU.
Tensor host(const Tensor& tensor) {
  if (!on_sim(tensor)) return tensor;
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(c10::kCPU);
  const auto& storage = tensor.storage();
  if (storage.nbytes() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const int64_t elements = storage.nbytes() / tensor.itemsize();
  auto all = at::from_blob(const_cast<void*>(storage.data()), {elements}, [tensor](void*) {}, options);
  return all.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

OptionalTensor host(const OptionalTensor& tensor) { return tensor ? OptionalTensor(host(*tensor)) : std::nullopt; }

// What a CPU kernel returned, as a tensor of the device.
Tensor on_device(const Tensor& result) {
  if (!result.defined() || on_sim(result)) return result;
  const auto options = result.options().device(Device(SIM, current));
  Tensor copy = result.is_non_overlapping_and_dense() ? at::empty_strided(result.sizes(), result.strides(), options)
                                                      : at::empty(result.sizes(), options);
  host(copy).copy_(result);
  return copy;
}

// ---- operations of the device's own ----

const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

Tensor empty(SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  return at::detail::empty_generic(sizes, &memory, KEYS, c10::dtype_or_default(type), format);
}

Tensor empty_strided(SymIntArrayRef size, SymIntArrayRef stride, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size), strides = C10_AS_INTARRAYREF_SLOW(stride);
  return at::detail::empty_strided_generic(sizes, strides, &memory, KEYS, c10::dtype_or_default(type));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  {
    std::lock_guard<std::mutex> guard(lock);
    to_device += on_sim(to) && !on_sim(from);
    to_host += on_sim(from) && !on_sim(to);
  }
  host(to).copy_(host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& tensor) {
  note("_local_scalar_dense");
  {
    std::lock_guard<std::mutex> guard(lock);
    to_host++;
  }
  return host(tensor).item();
}

const Tensor& resize(const Tensor& self, SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t need = (c10::multiply_integers(sizes) + self.storage_offset()) * self.itemsize();
  if (need > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), need);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

void check_device(std::initializer_list<Tensor> tensors, const char* name) {
  const auto device = tensors.begin()->device();
  for (const auto& tensor : tensors)
    TORCH_CHECK(!tensor.defined() || tensor.device() == device, "Expected all tensors to be on the same device, but ",
                "found ", device, " and ", tensor.device(), " (", name, ")");
  note(name);
}

Tensor convolution(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, SymIntArrayRef stride,
                   SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding,
                   c10::SymInt groups) {
  check_device({x, weight, bias.value_or(Tensor())}, "convolution");
  return on_device(at::convolution_symint(host(x), host(weight), host(bias), stride, padding, dilation, transposed,
                                          output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, SymIntArrayRef stride, SymIntArrayRef padding,
    SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  check_device({gradient, x, weight}, "convolution_backward");
  const std::vector<c10::SymInt> bias{weight.sym_size(0)};
  const auto [by_x, by_weight, by_bias] = at::convolution_backward_symint(
      host(gradient), host(x), host(weight), at::OptionalSymIntArrayRef(bias), stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  return {on_device(by_x), on_device(by_weight), on_device(by_bias)};
}

// ---- every other operation: the CPU's kernel, once all tensors are known to be of one device ----

template <typename Look>
void each_tensor(const IValue& value, Look look) {
  if (value.isTensor()) look(value.toTensor());
  if (value.isTensorList())
    for (const auto& tensor : value.toTensorVector()) look(tensor);
  if (value.isOptionalTensorList())
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor) look(*tensor);
}

IValue host_value(const IValue& value) {
  if (value.isTensor()) return host(value.toTensor());
  if (value.isTensorList()) {
    std::vector<Tensor> tensors;
    for (const auto& tensor : value.toTensorVector()) tensors.push_back(host(tensor));
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<OptionalTensor> tensors;
    for (const auto& tensor : value.toOptionalTensorVector()) tensors.push_back(host(tensor));
    return tensors;
  }
  if (value.isDevice()) return Device(c10::kCPU);
  return value;
}

// Where an operation runs; refuses tensors of two devices. As on CUDA, a number on the CPU may go with tensors of the
// device, and so may indices, but neither in the operations that take lists (`_foreach`) or are fused (`_fused`).
std::optional<Device> common_device(const std::string& name, const IValue* arguments, size_t count) {
  std::optional<Device> found;
  bool cpu = false, cpu_array = false;
  for (size_t i = 0; i < count; i++) {
    each_tensor(arguments[i], [&](const Tensor& tensor) {
      if (!tensor.defined()) return;
      if (tensor.device().is_cpu()) {
        cpu = true;
        cpu_array |= tensor.dim() > 0;
      } else {
        TORCH_CHECK(!found || *found == tensor.device(), "Expected all tensors to be on the same device, but found ",
                    *found, " and ", tensor.device(), " (", name, ")");
        found = tensor.device();
      }
    });
    if (arguments[i].isDevice() && arguments[i].toDevice().type() == SIM) {
      const auto asked = arguments[i].toDevice().index();
      found = Device(SIM, asked < 0 ? current : asked);
    }
  }
  const bool indexes = name.find("index_put") != std::string::npos || name == "aten::index" || name == "aten::_unsafe_index";
  const bool strict = name.rfind("aten::_fused", 0) == 0 || name.rfind("aten::_foreach", 0) == 0;
  TORCH_CHECK(!found || !((cpu_array && !indexes) || (cpu && strict)),
              "Expected all tensors to be on the same device, but found ", *found, " and cpu (", name, ")");
  return found;
}

bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

// An output that was empty has grown on the CPU's side.
void take_over(const Tensor& tensor, const Tensor& grown) {
  if (grown.sizes() == tensor.sizes() && grown.strides() == tensor.strides()) return;
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(tensor.storage(), grown.storage().nbytes());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(grown.sizes(), grown.strides(), 0);
  host(tensor).copy_(grown);
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& parameters = schema.arguments();
  const size_t count = parameters.size(), first = stack->size() - count;
  const auto where = common_device(schema.name(), stack->data() + first, count);
  note(schema.name().substr(6));  // without "aten::"
  c10::OptionalDeviceGuard guard(where);
  const std::vector<IValue> given(stack->begin() + first, stack->end());
  for (size_t i = 0; i < count; i++) (*stack)[first + i] = host_value(given[i]);
  const std::vector<IValue> hosts(stack->begin() + first, stack->end());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (size_t i = 0; i < count; i++)
    if (writes(parameters[i]) && given[i].isTensor() && on_sim(given[i].toTensor()))
      take_over(given[i].toTensor(), hosts[i].toTensor());
  const auto& returns = schema.returns();
  for (size_t r = 0; r < returns.size(); r++) {
    auto& result = (*stack)[stack->size() - returns.size() + r];
    if (writes(returns[r])) {  // one of the arguments, which is returned as it was given
      for (size_t i = 0; i < count; i++)
        if (parameters[i].alias_info() && *parameters[i].alias_info() == *returns[r].alias_info()) result = given[i];
    } else if (result.isTensor()) {
      result = on_device(result.toTensor());
    } else if (result.isTensorList()) {
      std::vector<Tensor> tensors;
      for (const auto& tensor : result.toTensorVector()) tensors.push_back(on_device(tensor));
      result = tensors;
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("resize_", resize);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(log_softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("init", [] { at::RegisterPrivateUse1HooksInterface(new Hooks()); });
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("set_device", [](int device) { current = static_cast<DeviceIndex>(device); });
  m.def("start_counting", [] {
    std::lock_guard<std::mutex> guard(lock);
    counting = true, calls.clear(), to_device = to_host = 0, peak = live;
  });
  m.def("counts", [] { return std::make_tuple(calls, to_device, to_host); });
  m.def("memory", [] { return std::make_pair(live, peak); });
  m.def("limit", [] { return limit; });
  m.def("set_limit", [](long bytes) { limit = bytes; });
}
