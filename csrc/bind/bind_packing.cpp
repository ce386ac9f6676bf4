// Bindings of documents packed into samples.
#include <utility>

#include "bind/arrays.hpp"
#include "core/samples/packing.hpp"

namespace tokpack {
namespace {

static_assert(sizeof(PackedSamples::Window) == 3 * sizeof(std::int64_t));

PackingInput make_input(const Array<std::int32_t>& lengths, std::int64_t seq_length,
                        std::int64_t extra, std::uint64_t key, std::int64_t multiple) {
  return {lengths_of(lengths).data(),
          static_cast<std::size_t>(lengths.size()),
          seq_length,
          extra,
          key,
          multiple};
}

// An array that owns the vector's memory; no copy.
template <class T, class V>
Array<T> own(std::vector<V>&& values, std::vector<py::ssize_t> shape) {
  auto held = std::make_unique<std::vector<V>>(std::move(values));
  const auto* data = reinterpret_cast<const T*>(held->data());
  const py::capsule owner(held.get(), [](void* p) { delete static_cast<std::vector<V>*>(p); });
  held.release();
  static const T none{};
  return Array<T>(std::move(shape), data != nullptr ? data : &none, owner);
}

py::dict pack_documents(const Array<std::int32_t>& lengths, std::int64_t seq_length,
                        std::int64_t extra, std::uint64_t key, bool together,
                        std::int64_t multiple) {
  const PackingInput input = make_input(lengths, seq_length, extra, key, multiple);
  PackedSamples packed;
  {
    const py::gil_scoped_release release;
    packed = pack(input, together);
  }
  const auto& t = packed.totals;
  const std::vector<std::int64_t> totals{t.tokens, t.left_out, t.pieces, t.placed,
                                         t.labels, t.cut,      t.few};
  const auto count = [](const auto& values) { return static_cast<py::ssize_t>(values.size()); };
  const py::ssize_t entries = count(packed.entries), starts = count(packed.starts),
                    windows = count(packed.windows);
  py::dict result;
  result["entries"] = own<std::uint16_t>(std::move(packed.entries), {entries});
  result["starts"] = own<std::int64_t>(std::move(packed.starts), {starts});
  result["windows"] = own<std::int64_t>(std::move(packed.windows), {windows, 3});
  result["totals"] = Int64s(count(totals), totals.data());
  return result;
}

// A packing and the arrays that it reads, which are not copied.
class HeldPacking {
 public:
  HeldPacking(Array<std::int32_t> lengths, std::int64_t seq_length, std::int64_t extra,
              std::uint64_t key, Array<std::uint16_t> entries, Int64s starts, Int64s windows,
              std::int64_t multiple)
      : lengths_(std::move(lengths)),
        entries_(std::move(entries)),
        starts_(std::move(starts)),
        windows_(std::move(windows)),
        packing_(make_input(lengths_, seq_length, extra, key, multiple),
                 vector_of(entries_, "entries"), vector_of(starts_, "starts"),
                 windows_of(windows_)) {}

  std::int64_t samples() const { return packing_.samples(); }

  Int64s locate(std::int64_t sample) const {
    return py::cast<Int64s>(locate_these({&sample, 1})[0]);
  }

  py::tuple locate_many(const Int64s& samples) const {
    return locate_these(vector_of(samples, "samples"));
  }

 private:
  static std::span<const PackedSamples::Window> windows_of(const Int64s& array) {
    if (array.ndim() != 2 || array.shape(1) != 3 || !is_aligned(array)) {
      throw py::value_error("windows must be aligned [n, 3]");
    }
    return {reinterpret_cast<const PackedSamples::Window*>(array.data()),
            static_cast<std::size_t>(array.shape(0))};
  }

  py::tuple locate_these(std::span<const std::int64_t> samples) const {
    return located<Packing::Piece>(
        samples, packing_.samples(),
        [&](auto numbers, auto& pieces, auto counts) { packing_.locate(numbers, pieces, counts); });
  }

  Array<std::int32_t> lengths_;
  Array<std::uint16_t> entries_;
  Int64s starts_, windows_;
  Packing packing_;
};

}  // namespace

void bind_packing(py::module_& module) {
  module.def("pack", &pack_documents, py::arg("lengths"), py::arg("seq_length"), py::arg("extra"),
             py::arg("key"), py::kw_only(), py::arg("together"), py::arg("multiple") = 1);
  py::class_<HeldPacking>(module, "Packing")
      .def(py::init<Array<std::int32_t>, std::int64_t, std::int64_t, std::uint64_t,
                    Array<std::uint16_t>, Int64s, Int64s, std::int64_t>(),
           py::arg("lengths"), py::arg("seq_length"), py::arg("extra"), py::arg("key"),
           py::kw_only(), py::arg("entries"), py::arg("starts"), py::arg("windows"),
           py::arg("multiple") = 1)
      .def("__len__", &HeldPacking::samples)
      .def("locate", &HeldPacking::locate, py::arg("sample"))
      .def("locate_many", &HeldPacking::locate_many, py::arg("samples"));
}

}  // namespace tokpack
