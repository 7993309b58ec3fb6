// Boxes as they are seen at this zoom. Those too narrow to be told apart are joined to one in their mean colour, with the idle
// time between them; what is drawn reaches half a window beyond both ends, so that most of a pan draws nothing anew.
const NARROW = 2, NEAR = 1, MOST_TEXTS = 2500, EDGE = 0.07
const width_of = x_range.end - x_range.start

function level(layer) {
  const {full, shown, looks, background, plot} = layer
  const pixel = width_of / plot.inner_width
  if (!(pixel > 0)) return
  const seen = shown.seen
  if (seen && x_range.start >= seen.from && x_range.end <= seen.to && Math.abs(Math.log(pixel / seen.pixel)) < 0.15) return
  const from = x_range.start - width_of / 2, to = x_range.end + width_of / 2
  shown.seen = {from, to, pixel}
  const {look, start, end} = full.data
  const found = {left: [], right: [], top: [], bottom: [], color: [], box: []}
  const texts = {x: [], y: [], text: [], color: []}
  let open = null, last = null

  function emit(lane_look, left, right, color, box) {
    found.left.push(left)
    found.right.push(right)
    found.top.push(looks.top[lane_look] + EDGE * (looks.bottom[lane_look] - looks.top[lane_look]))
    found.bottom.push(looks.bottom[lane_look] - EDGE * (looks.bottom[lane_look] - looks.top[lane_look]))
    found.color.push(color)
    found.box.push(box)
  }

  function close() {
    if (open === null) return
    const {first, look: of, left, right, busy, count, sum} = open
    open = null
    const span = Math.max(right - left, busy)
    const mean = [0, 1, 2].map((one) => (sum[one] + background[one] * (span - busy)) / span)
    const key = mean.map((one) => Math.round(one / 6) * 6).join(",")
    const lane = looks.lane[of], at = found.left.length - 1
    if (last !== null && last.lane === lane && last.key === key && left - last.right < NEAR * pixel) {
      last.right = found.right[at] = right
      last.count += count
      found.box[at] = -last.count
      return
    }
    emit(of, left, Math.max(right, left + 0.7 * pixel), `rgb(${key})`, count > 1 ? -count : first)
    last = count > 1 ? {lane, key, right, count} : null
  }

  for (let box = 0; box < look.length; box++) {
    const begin = start[box], stop = end[box]
    if (stop <= from || begin >= to) continue
    const of = look[box], wide = stop - begin, color = looks.rgb[of]
    if (open !== null && (looks.lane[of] !== looks.lane[open.look] || begin > open.right + NEAR * pixel)) close()
    if (wide >= NARROW * pixel) {
      close()
      last = null
      emit(of, begin, stop - Math.min(0.8 * pixel, 0.1 * wide), `rgb(${color})`, box)
      if (layer.texts) {
        const text = `${full.data.microbatch[box]}`
        const tall = (looks.bottom[of] - looks.top[of]) * layer.row_pixels
        if (looks.numbered[of] && tall > 11 && wide > (6 * text.length + 4) * pixel) {
          texts.x.push((begin + stop) / 2)
          texts.y.push((looks.top[of] + looks.bottom[of]) / 2)
          texts.text.push(text)
          texts.color.push(0.3 * color[0] + 0.6 * color[1] + 0.1 * color[2] > 105 ? "#1f2328" : "white")
        }
      }
      continue
    }
    open ??= {first: box, look: of, left: begin, right: stop, busy: 0, count: 0, sum: [0, 0, 0]}
    open.right = Math.max(open.right, stop)
    open.busy += wide
    open.count += 1
    for (let one = 0; one < 3; one++) open.sum[one] += wide * color[one]
    if (open.right - open.left >= NARROW * pixel) close()
  }
  close()
  shown.data = found
  if (layer.texts) layer.texts.data = texts.x.length > MOST_TEXTS ? {x: [], y: [], text: [], color: []} : texts
}

for (const layer of layers) level(layer)
