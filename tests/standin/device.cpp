// A stand-in for an accelerator: a device with storage, allocator, generator and pinned memory of its own, whose kernels
// are the CPU's. Every operator runs its CPU kernel on aliases of the device's memory, so results equal the CPU's to the
// bit. Tensors of two devices are refused, as a GPU refuses them. It counts what would cost time on a real one.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {

constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
int devices() {
  const char* given = std::getenv("STANDIN_DEVICES");
  return given ? std::atoi(given) : 1;
}

struct Counts {
  std::atomic<int64_t> launches{0}, waits{0}, blocking_uploads{0}, uploads{0}, downloads{0}, bytes_up{0}, bytes_down{0},
      allocated{0}, peak{0};
} counts;
thread_local c10::DeviceIndex current = 0;
std::mutex names_lock;
std::unordered_map<std::string, int64_t> names;  // launches by operator
std::unordered_map<std::string, int64_t> waited;  // waits by operator

void launch(const std::string& name) {
  ++counts.launches;
  std::lock_guard<std::mutex> hold(names_lock);
  ++names[name];
}
void wait(const std::string& name) {
  ++counts.waits;
  std::lock_guard<std::mutex> hold(names_lock);
  ++waited[name];
}

// ---- memory ----------------------------------------------------------------------------------------------------------

struct Block {
  void* data;
  size_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  counts.allocated -= static_cast<int64_t>(block->bytes);
  std::free(block->data);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device here(DEVICE, current);
    if (bytes == 0) return {nullptr, nullptr, &free_block, here};
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, bytes) == 0, "the stand-in is out of memory");
    counts.allocated += static_cast<int64_t>(bytes);
    int64_t now = counts.allocated, peak = counts.peak;
    while (now > peak && !counts.peak.compare_exchange_weak(peak, now)) {
    }
    return {data, new Block{data, bytes}, &free_block, here};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
DeviceAllocator allocator;
REGISTER_ALLOCATOR(DEVICE, &allocator)

std::mutex pinned_lock;
std::set<std::pair<const char*, const char*>> pinned;  // begin and end of pinned memory

void free_pinned(void* data) {
  std::lock_guard<std::mutex> hold(pinned_lock);
  for (auto it = pinned.begin(); it != pinned.end(); ++it)
    if (it->first == data) {
      pinned.erase(it);
      break;
    }
  std::free(data);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, bytes ? bytes : 1) == 0, "out of memory");
    std::lock_guard<std::mutex> hold(pinned_lock);
    pinned.insert({static_cast<char*>(data), static_cast<char*>(data) + bytes});
    return {data, data, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
PinnedAllocator pinned_allocator;

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> hold(pinned_lock);
  for (auto& [begin, end] : pinned)
    if (begin <= data && data < end) return true;
  return false;
}

// ---- generator -------------------------------------------------------------------------------------------------------

struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index)
      : GeneratorImpl(c10::Device(DEVICE, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override { TORCH_CHECK(false, "no offsets"); }
  uint64_t get_offset() const override { TORCH_CHECK(false, "no offsets"); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* other = new DeviceGenerator(device().index());
    other->inner = inner.clone();
    return other;
  }
  at::Generator inner;
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<DeviceGenerator>(index < 0 ? current : index);
}
const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::vector<at::Generator>* made = [] {
    auto* all = new std::vector<at::Generator>;
    for (int i = 0; i < devices(); ++i) all->push_back(new_generator(static_cast<c10::DeviceIndex>(i)));
    return all;
  }();
  return made->at(index < 0 ? current : index);
}

// ---- what torch asks of an accelerator ---------------------------------------------------------------------------------

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(devices()); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current, index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  at::Device getDeviceFromPtr(void*) const override { return at::Device(DEVICE, current); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = allocator.allocate(bytes);
    if (storage.data()) std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEVICE; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {DEVICE, std::exchange(current, device.index() < 0 ? current : device.index())};
  }
  c10::Device getDevice() const override { return {DEVICE, current}; }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchangeDevice(device); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(devices()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { wait("synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait("synchronize"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- running the CPU's kernels -----------------------------------------------------------------------------------------

bool ours(const at::Tensor& t) { return t.defined() && t.device().type() == DEVICE; }

// A CPU tensor on the same memory.
at::Tensor on_cpu(const at::Tensor& t) {
  auto& storage = t.storage();
  auto data = c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::DeviceType::CPU));
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false),
      c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

at::Tensor empty_strided_here(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device) {
  c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           type);
}

// A device tensor with the values of a CPU tensor.
at::Tensor sent(const at::Tensor& t, c10::Device device) {
  auto made = empty_strided_here(t.sizes(), t.strides(), t.scalar_type(), device);
  on_cpu(made).copy_(t);
  return made;
}

const std::set<std::string> WAITING = {  // operators after which a GPU's host must know a number
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::equal", "aten::bincount", "aten::repeat_interleave", "aten::_local_scalar_dense"};

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& schema = op.schema();
  const std::string name = schema.name();
  launch(name);
  if (WAITING.count(name)) wait(name);
  size_t n = schema.arguments().size(), begin = stack->size() - n;
  c10::Device device(DEVICE, current);
  std::vector<std::pair<at::Tensor, at::Tensor>> fresh;                    // device tensor without storage, CPU tensor
  std::unordered_map<c10::TensorImpl*, at::Tensor> originals;              // alias -> device tensor
  bool some = false, index = name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
  auto there = [&](const at::Tensor& t) {
    if (!t.defined()) return t;
    if (!ours(t)) {
      TORCH_CHECK(t.dim() == 0, "Expected all tensors to be on the same device, but ", name, " got one on ", t.device());
      return t;
    }
    if (index && t.scalar_type() == at::kBool) wait(name);
    some = true;
    device = t.device();
    if (t.storage().nbytes() == 0) {
      auto made = at::empty(t.sizes(), t.options().device(at::kCPU));
      fresh.emplace_back(t, made);
      originals[made.unsafeGetTensorImpl()] = t;
      return made;
    }
    auto made = on_cpu(t);
    originals[made.unsafeGetTensorImpl()] = t;
    return made;
  };
  for (size_t i = 0; i < n; ++i) {
    auto& value = (*stack)[begin + i];
    if (value.isTensor()) {
      value = there(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& t : list) t = there(t);
      value = c10::List<at::Tensor>(list);
    } else if (value.isOptionalTensorList()) {
      auto list = value.toOptionalTensorList();
      c10::List<std::optional<at::Tensor>> made;
      for (std::optional<at::Tensor> t : list) made.push_back(t.has_value() ? std::make_optional(there(*t)) : t);
      value = std::move(made);
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else if (schema.arguments()[i].type()->str().find("Generator") != std::string::npos) {
      auto given = value.isNone() ? default_generator(device.index()) : value.toGenerator();
      TORCH_CHECK(given.device().type() == DEVICE, "Expected a generator of the device, but ", name, " got one of the CPU");
      value = static_cast<DeviceGenerator*>(given.unsafeGetGeneratorImpl())->inner;
    }
  }
  op.callBoxed(stack);
  for (auto& [t, made] : fresh)
    if (made.numel() != t.numel() || !made.sizes().equals(t.sizes())) {
      t.unsafeGetTensorImpl()->set_storage_and_dtype(
          empty_strided_here(made.sizes(), made.strides(), made.scalar_type(), t.device()).storage(), made.dtype());
      t.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
      on_cpu(t).copy_(made);
    }
  auto back = [&](const at::Tensor& t) {
    if (!t.defined()) return t;
    auto found = originals.find(t.unsafeGetTensorImpl());
    return found != originals.end() ? found->second : sent(t, device);
  };
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = back(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& t : list) t = back(t);
      value = c10::List<at::Tensor>(list);
    }
  }
}

// ---- operators that cannot be left to the CPU --------------------------------------------------------------------------

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                               std::optional<at::Device> device, std::optional<bool>,
                               std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(DEVICE, current)));
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::get_default_dtype_as_scalartype()), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  return empty_strided_here(sizes, strides, type.value_or(at::get_default_dtype_as_scalartype()),
                            device.value_or(c10::Device(DEVICE, current)));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool up = !ours(from), down = !ours(to);
  if (!up && !down) {
    launch("copy");
  } else if (up) {
    ++counts.uploads;
    counts.bytes_up += static_cast<int64_t>(from.numel() * from.element_size());
    if (!(non_blocking && (from.dim() == 0 || is_pinned(from.storage().data())))) ++counts.blocking_uploads;
  } else {
    ++counts.downloads;
    counts.bytes_down += static_cast<int64_t>(from.numel() * from.element_size());
    if (!(non_blocking && is_pinned(to.storage().data()))) wait("copy to the host");
  }
  if (to.numel() == 0) return to;
  auto source = up ? from : on_cpu(from), target = down ? to : on_cpu(to);
  target.copy_(source.expand_as(target));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (!to.sizes().equals(from.sizes())) at::native::resize_impl_cpu_(to.unsafeGetTensorImpl(), from.sizes(), {});
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& t) {
  wait("item");
  return on_cpu(t).item();
}

const at::Tensor& resize(const at::Tensor& t, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto made = empty_memory_format(sizes, t.scalar_type(), {}, t.device(), {}, format);
  int64_t kept = std::min(t.numel(), made.numel());
  if (kept > 0) on_cpu(made).view(-1).slice(0, 0, kept).copy_(on_cpu(t).reshape(-1).slice(0, 0, kept));
  t.unsafeGetTensorImpl()->set_storage_and_dtype(made.storage(), made.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
  return t;
}

at::Tensor view(const at::Tensor& t, at::IntArrayRef sizes) { return at::native::view(t, sizes); }
at::Tensor as_strided(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, offset);
}
at::Tensor reshape_alias(const at::Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::as_strided_tensorimpl(t, sizes, strides, t.storage_offset());
}
at::Tensor& set_storage(at::Tensor& t, at::Storage storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  t.unsafeGetTensorImpl()->set_storage_and_dtype(storage, t.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return t;
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                       int64_t groups) {
  launch("aten::convolution");
  std::optional<at::Tensor> bias;
  if (b.has_value() && b->defined()) bias = on_cpu(*b);
  return sent(at::convolution(on_cpu(x), on_cpu(w), bias, stride, padding, dilation, transposed, output_padding, groups),
              x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& g, const at::Tensor& x, const at::Tensor& w, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  launch("aten::convolution_backward");
  std::vector<int64_t> bias{w.size(transposed ? 1 : 0) * (transposed ? groups : 1)};
  auto [dx, dw, db] = at::convolution_backward(on_cpu(g), on_cpu(x), on_cpu(w), at::OptionalIntArrayRef(bias), stride, padding,
                                               dilation, transposed, output_padding, groups, mask);
  auto back = [&](const at::Tensor& t) { return t.defined() ? sent(t, x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

int64_t attention_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                         bool, std::optional<double>, bool) {
  return 0;  // the plain formula
}

// Recurrent cells ask an accelerator for a fused kernel. Here they are written out, and autograd differentiates them.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& from_x, const at::Tensor& from_h,
                                                         const at::Tensor& c, const std::optional<at::Tensor>& b_x,
                                                         const std::optional<at::Tensor>& b_h) {
  auto gates = (b_x.has_value() && b_x->defined() ? from_x + *b_x : from_x) +
               (b_h.has_value() && b_h->defined() ? from_h + *b_h : from_h);
  auto part = gates.chunk(4, 1);
  auto c_next = part[1].sigmoid() * c + part[0].sigmoid() * part[2].tanh();
  return {part[3].sigmoid() * c_next.tanh(), c_next, gates};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& from_x, const at::Tensor& from_h, const at::Tensor& h,
                                            const std::optional<at::Tensor>& b_x, const std::optional<at::Tensor>& b_h) {
  auto x = (b_x.has_value() && b_x->defined() ? from_x + *b_x : from_x).chunk(3, 1);
  auto y = (b_h.has_value() && b_h->defined() ? from_h + *b_h : from_h).chunk(3, 1);
  auto reset = (x[0] + y[0]).sigmoid(), update = (x[1] + y[1]).sigmoid(), fresh = (x[2] + reset * y[2]).tanh();
  return {(h - fresh) * update + fresh, fresh};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

// Under autocast these compute in the shorter type, as on the CPU.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize);
  m.impl("view", view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_fused_sdp_choice", attention_choice);
  // left alone, these would be computed step by step, which rounds otherwise than the CPU's kernels
  for (auto name : {"native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

std::map<std::string, int64_t> stats() {
  return {{"launches", counts.launches}, {"waits", counts.waits}, {"blocking_uploads", counts.blocking_uploads},
          {"uploads", counts.uploads}, {"downloads", counts.downloads}, {"bytes_up", counts.bytes_up},
          {"bytes_down", counts.bytes_down}, {"allocated", counts.allocated}, {"peak", counts.peak}};
}

void reset() {
  counts.launches = counts.waits = counts.blocking_uploads = counts.uploads = counts.downloads = 0;
  counts.bytes_up = counts.bytes_down = 0;
  counts.peak = counts.allocated.load();
  std::lock_guard<std::mutex> hold(names_lock);
  names.clear();
  waited.clear();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("stats", &stats);
  m.def("launches", [] { return std::lock_guard<std::mutex>(names_lock), names; });
  m.def("waits", [] { return std::lock_guard<std::mutex>(names_lock), waited; });
  m.def("reset", &reset);
  m.def("synchronize", [] { wait("synchronize"); });
  m.def("device_count", &devices);
  m.def("current_device", [] { return static_cast<int>(current); });
  m.def("set_device", [](int index) { current = static_cast<c10::DeviceIndex>(index); });
  m.def("default_generator", [](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); });
}
