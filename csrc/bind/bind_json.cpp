// JsonLines, JsonValues, json_column, split_lines, invalid_utf8.
#include <stdexcept>

#include "bind/bind.hpp"
#include "core/json/json_columns.hpp"
#include "core/json/json_lines.hpp"
#include "core/json/json_values.hpp"
#include "core/text/split_lines.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

struct Extracted {
  py::array data, spans, lines, slow, values;
  std::int64_t line_count;
};

class JsonLinesBinding {
 public:
  JsonLinesBinding(std::optional<std::string> key, const std::string& level,
                   std::vector<std::string> kept)
      : kept_(static_cast<py::ssize_t>(kept.size())),
        json_lines_(std::move(key), parse_level(level), std::move(kept)) {}

  Extracted extract(const py::buffer& source) {
    const Bytes block(source);
    auto text = text_.take();
    auto spans = spans_.take();
    auto lines = lines_.take();
    auto slow = slow_.take();
    auto values = values_.take();
    std::int64_t line_count;
    {
      const py::gil_scoped_release release;
      line_count = json_lines_.extract(block.span(), {*text, *spans, *lines, *slow, *values});
    }
    const auto text_size = static_cast<py::ssize_t>(text->size());
    const auto documents = static_cast<py::ssize_t>(lines->size());
    const auto slow_records = static_cast<py::ssize_t>(slow->size() / 3);
    return {text_.give(std::move(text), {text_size}),
            spans_.give(std::move(spans), {documents, 2}),
            lines_.give(std::move(lines), {documents}),
            slow_.give(std::move(slow), {slow_records, 3}),
            values_.give(std::move(values), {documents, kept_, 2}),
            line_count};
  }

 private:
  py::ssize_t kept_;
  JsonLines json_lines_;
  Shared<std::uint8_t> text_;
  Shared<std::int64_t> spans_, lines_, slow_, values_;
};

class JsonValuesBinding {
 public:
  explicit JsonValuesBinding(std::vector<std::string> path) : values_(std::move(path)) {}

  py::bytes feed(const py::buffer& source) {
    const Bytes chunk(source);
    if (busy_) throw std::runtime_error("JsonValues.feed was called while another thread is in it");
    busy_ = true;
    out_.clear();
    std::optional<JsonValuesError> error;
    {
      const py::gil_scoped_release release;
      error = values_.feed(chunk.span(), out_);
    }
    busy_ = false;
    if (error) {
      throw py::value_error(std::string(error->reason) + " at byte " +
                            std::to_string(error->position) + " of the JSON");
    }
    return {reinterpret_cast<const char*>(out_.data()), out_.size()};
  }
  bool finished() const { return values_.finished(); }

 private:
  JsonValues values_;
  Buffer<std::uint8_t> out_;
  bool busy_ = false;
};

py::array split_lines_binding(const py::buffer& source) {
  const Bytes block(source);
  static Shared<std::int64_t> result;
  auto spans = result.take();
  {
    const py::gil_scoped_release release;
    split_lines(block.span(), *spans);
  }
  const auto lines = static_cast<py::ssize_t>(spans->size() / 2);
  return result.give(std::move(spans), {lines, 2});
}

using Spans = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

void check_spans(const Bytes& data, const Spans& spans) {
  if (spans.ndim() != 2 || spans.shape(1) != 2)
    throw py::value_error("spans must have shape [n, 2]");
  const auto size = static_cast<std::int64_t>(data.span().size());
  const std::int64_t* span = spans.data();
  for (std::int64_t i = 0; i < spans.shape(0); ++i) {
    if (span[2 * i] < 0 || span[2 * i] > span[2 * i + 1] || span[2 * i + 1] > size) {
      throw py::value_error("span " + std::to_string(i) + " is not inside the data");
    }
  }
}

py::array invalid_utf8_binding(const py::buffer& source, const Spans& spans,
                               const std::string& level) {
  const Bytes data(source);
  const Utf8Check valid_utf8 = utf8_check(parse_level(level));
  check_spans(data, spans);
  const auto documents = static_cast<std::int64_t>(spans.shape(0));
  const std::int64_t* span = spans.data();
  Shared<std::int64_t> result;
  auto invalid = result.take();
  {
    const py::gil_scoped_release release;
    for (std::int64_t i = 0; i < documents; ++i) {
      const auto begin = static_cast<std::size_t>(span[2 * i]);
      const auto end = static_cast<std::size_t>(span[2 * i + 1]);
      if (!valid_utf8(data.span().data() + begin, end - begin)) invalid->push_back(i);
    }
  }
  const auto count = static_cast<py::ssize_t>(invalid->size());
  return result.give(std::move(invalid), {count});
}

constexpr std::array<const char*, 6> kColumnKinds = {"null",   "bool",   "int64",
                                                     "double", "string", "mixed"};

py::tuple json_column_binding(const py::buffer& source, const Spans& spans,
                              const std::string& level) {
  const Bytes data(source);
  const Level parsed = parse_level(level);
  check_spans(data, spans);
  Shared<std::uint8_t> bytes;  // an array of each result is its own: Arrow holds it for long
  Shared<std::int32_t> numbers;
  auto validity = bytes.take();
  auto values = bytes.take();
  auto offsets = numbers.take();
  ColumnOutput output{*validity, *values, *offsets};
  ColumnKind kind;
  {
    const py::gil_scoped_release release;
    const std::span<const std::int64_t> all(spans.data(), static_cast<std::size_t>(spans.size()));
    kind = read_json_column(data.span(), all, parsed, output);
  }
  const auto size = [](const auto& buffer) { return static_cast<py::ssize_t>(buffer->size()); };
  const std::vector<py::ssize_t> shapes = {size(validity), size(values), size(offsets)};
  return py::make_tuple(kColumnKinds[static_cast<std::size_t>(kind)], output.nulls,
                        bytes.give(std::move(validity), {shapes[0]}),
                        numbers.give(std::move(offsets), {shapes[2]}),
                        bytes.give(std::move(values), {shapes[1]}));
}

}  // namespace

void bind_json(py::module_& module) {
  py::class_<Extracted>(module, "Extracted")
      .def_readonly("data", &Extracted::data)
      .def_readonly("spans", &Extracted::spans)
      .def_readonly("lines", &Extracted::lines)
      .def_readonly("slow", &Extracted::slow)
      .def_readonly("values", &Extracted::values)
      .def_readonly("line_count", &Extracted::line_count);
  py::class_<JsonLinesBinding>(module, "JsonLines")
      .def(py::init<std::optional<std::string>, std::string, std::vector<std::string>>(),
           py::arg("key"), py::arg("level") = "auto", py::arg("kept") = std::vector<std::string>())
      .def("extract", &JsonLinesBinding::extract, py::arg("block"));
  py::class_<JsonValuesBinding>(module, "JsonValues")
      .def(py::init<std::vector<std::string>>(), py::arg("path") = std::vector<std::string>())
      .def("feed", &JsonValuesBinding::feed, py::arg("chunk"))
      .def_property_readonly("finished", &JsonValuesBinding::finished);
  module.def("json_column", &json_column_binding, py::arg("data"), py::arg("spans"),
             py::arg("level") = "auto");
  module.def("split_lines", &split_lines_binding, py::arg("block"));
  module.def("invalid_utf8", &invalid_utf8_binding, py::arg("data"), py::arg("spans"),
             py::arg("level") = "auto");
}

}  // namespace tokpack
