// The elements of a JSON array, a line each, with commas between them. exporters/own_json.py draws the file that they are in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "perfetto_lanes.h"
#include "perfetto_rows.h"

namespace ral::trace {

class JsonLines {
 public:
  // Takes the text, in chunks.
  using Sink = std::function<void(std::string_view)>;
  // What says where a lane of a track is drawn, `"pid":1,"tid":2`. Asked once a lane; it may write lines of its own.
  using Place = std::function<std::string(std::int64_t track, std::int64_t lane)>;

  JsonLines(Sink sink, std::size_t chunk_bytes) : sink_(std::move(sink)), chunk_bytes_(chunk_bytes) {}

  // What stands before the time of a counter's value, and between it and the value; nothing: it is not drawn.
  using Frame = std::function<std::optional<std::pair<std::string, std::string>>(std::int64_t key)>;

  void line(std::string_view text);

  // A row an object. A column is a member where it is not NULL: a BIGINT, a VARCHAR, or a BLOB that is JSON already.
  void objects(perfetto::ColumnStream& rows);

  // Slices, points and the ends of arrows, as perfetto_rows.h says; times count from `zero_ns`.
  //   {"ph":"X",PLACE,"ts":1.000,"dur":0.250,"name":"aten::mm","cat":"op","args":{"event":7}}       B: never ends
  //   {"ph":"i","s":"t",PLACE,"ts":1.000,"name":...}                                                a point
  //   {"ph":"s","id":1,PLACE,"ts":1.000,"name":"flow","cat":"flow"}                                 f: the second end
  void slices(perfetto::ColumnStream& rows, perfetto::ColumnStream& arrows, std::int64_t zero_ns, const Place& place);

  // Columns: a counter's key, time (ns), value (BIGINT or DOUBLE); by key.
  void counters(perfetto::ColumnStream& rows, std::int64_t zero_ns, const Frame& frame);

  // Hands what is left to the sink.
  void finish();

 private:
  struct Track {
    perfetto::Lanes lanes;
    std::vector<std::string> places;
  };

  void begin_line();
  void end_line();
  void members(const perfetto::ColumnStream& rows, const std::vector<perfetto::Column>& columns, std::size_t row,
               std::size_t first);
  void slice(const perfetto::ColumnStream& rows, const std::vector<perfetto::Column>& columns, std::size_t row,
             std::string_view where);
  void arrow(const perfetto::ArrowTip& tip, std::string_view where);

  Sink sink_;
  std::size_t chunk_bytes_;
  std::string chunk_;
  bool begun_ = false;
  std::unordered_map<std::int64_t, Track> tracks_;
};

}  // namespace ral::trace
