// Bindings of what works on text alone: the pretokenizers and normalization.
#include "bind/bind.hpp"
#include "core/pretokenize/pretokenize.hpp"
#include "core/pretokenize/scan.hpp"
#include "core/text/nfc.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

Pattern parse_pattern(const std::string& name) {
  const auto pattern = pattern_by_name(name);
  if (!pattern) throw py::value_error("pattern '" + name + "' is unknown; see patterns()");
  return *pattern;
}

void require_utf8(std::span<const std::uint8_t> text) {
  if (!utf8_check(best_level())(text.data(), text.size())) {
    throw py::value_error("the text is not valid UTF-8");
  }
}

py::array_t<std::int64_t> pretokenize(const py::buffer& data, const std::string& pattern_name,
                                      const std::string& level_name) {
  const Pattern pattern = parse_pattern(pattern_name);
  const std::optional<Level> level =
      level_name == "plain" ? std::nullopt : std::optional(parse_level(level_name));
  const Bytes bytes(data);
  const std::span<const std::uint8_t> text = bytes.span();
  if (text.size() >= std::size_t{1} << 31) throw py::value_error("the document is 2 GiB or more");
  require_utf8(text);
  std::optional<std::vector<std::int64_t>> ends;
  {
    const py::gil_scoped_release release;
    if (level) ends = scan_ends(*level, pattern, text);
    if (!ends) ends = reference_ends(pattern, text);
  }
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(ends->size()), ends->data());
}

py::bytes normalize(const py::buffer& data) {
  const Bytes bytes(data);
  const std::span<const std::uint8_t> span = bytes.span();
  require_utf8(span);
  const std::string_view text(reinterpret_cast<const char*>(span.data()), span.size());
  std::string out;
  {
    const py::gil_scoped_release release;
    nfc(text, out);
  }
  return py::bytes(out);
}

}  // namespace

void bind_text(py::module_& module) {
  module.def("patterns", [] {
    py::list names;
    for (const std::string_view name : pattern_names())
      names.append(py::str(name.data(), name.size()));
    return names;
  });
  module.def("pretokenize", &pretokenize, py::arg("data"), py::arg("pattern"),
             py::arg("level") = "auto");
  module.def("nfc", &normalize, py::arg("data"));
}

}  // namespace tokpack
