// The compressed parts of this file, unpacked when they are asked for and then kept.

const unpacked = new Map();

function decoded(packed) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(packed);
  const letters = atob(packed), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

async function text(name) {
  const node = document.getElementById("data-" + name);
  if (node === null) throw new Error("this report has no part " + name);
  const bytes = decoded(node.textContent);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

export function load(name) {
  if (!unpacked.has(name)) unpacked.set(name, text(name).then(JSON.parse));
  return unpacked.get(name);
}

let library = null;

// The charting library is a script: it is run once, before the first chart.
export function plotly() {
  library ??= text("plotly").then((code) => {
    document.head.append(Object.assign(document.createElement("script"), { textContent: code }));
    return window.Plotly;
  });
  return library;
}
