// The memory of the device that is chosen: its steps, and the sums of its parts.
const number = select === null ? 0 : select.options.findIndex(([key]) => key === select.value)
const [first, last] = [offsets[number], offsets[number + 1]]
const data = {time: full.data.time.slice(first, last)}
let below = new Float32Array(last - first)
parts.forEach((part, place) => {
  data[part] = full.data[part].slice(first, last)
  const above = below.map((one, step) => one + data[part][step])
  data[`from ${place}`] = below
  data[`to ${place}`] = above
  below = above
})
data.total = below
shown.data = data
y_range.end = tops[number]
limit.location = limits[number]
limit.visible = limits[number] <= tops[number]
