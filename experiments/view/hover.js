// What is said of a box: its lines.
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "bytes"]]
const ops = layers.ops, own = layers[sort], look = own.looks

if (value < 0) return `${-value} ${sort === "ops" ? "ops" : sort === "links" ? "transfers" : "waits"}, too narrow to show: zoom in`

function moment(time) {
  return `${Number(time.toPrecision(6))}`
}

function size(bytes) {
  const [one, word] = SIZES.find(([one]) => bytes >= one) ?? [1, "bytes"]
  return `${Number((bytes / one).toPrecision(4))} ${word}`
}

function name(box) {
  const of = ops.full.data.look[box]
  return `${ops.looks.stage[of]}${ops.looks.name[of]}${ops.full.data.microbatch[box]}`
}

function named(box) {
  return box < 0 ? "" : `${name(box)} (${ops.lanes[ops.looks.lane_number[ops.full.data.look[box]]]})`
}

const data = own.full.data, of = data.look[value], begin = data.start[value], end = data.end[value]
const when = `${moment(begin)} to ${moment(end)} ${unit}: ${moment(end - begin)} ${unit}`
const lines = []
if (sort === "ops") {
  lines.push(`${name(value)}: ${look.words[of]}`, own.lanes[look.lane_number[of]], when)
  if (look.samples[of] > 0) lines.push(`samples: ${look.samples[of]}`)
  if (look.bytes[of] > 0) lines.push(`sends: ${size(look.bytes[of])}`)
  const awaited = data.awaited[value]
  if (awaited >= 0) lines.push(`waits for: ${named(awaited)}, there at ${moment(data.there[value])} ${unit}`)
} else if (sort === "links") {
  lines.push(`${named(data.producer[value])} →`, `${named(data.op[value])}`, look.words[of], when)
  lines.push(`bytes: ${size(look.bytes[of])}`)
} else {
  lines.push(`idle: ${look.name[of]}: ${look.words[of]}`, when)
  if (data.op[value] >= 0) lines.push(`before: ${name(data.op[value])}`)
  if (data.awaited[value] >= 0) lines.push(`waits for: ${named(data.awaited[value])}`)
}
return lines.join("\n")
