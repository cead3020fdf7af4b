"use strict";
// The page of the service: sends one picture, shows it before and after. No library, no build step.

const at = (id) => document.getElementById(id);
// What browsers show in an <img>; anything else is asked for as PNG.
const SHOWN = new Set(["image/png", "image/jpeg", "image/webp", "image/avif", "image/bmp"]);
const EXTENSIONS = { "image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/avif": "avif", "image/bmp": "bmp" };
const SVG = "http://www.w3.org/2000/svg";

const state = { file: null, request: null, urls: [], countdown: null };

function say(text) {
  at("status").textContent = text;
}

function clearResult() {
  state.urls.forEach((url) => URL.revokeObjectURL(url));
  state.urls = [];
  clearInterval(state.countdown);
  at("result").hidden = true;
  at("problem").hidden = true;
}

function objectUrl(blob) {
  const url = URL.createObjectURL(blob);
  state.urls.push(url);
  return url;
}

async function restore(file) {
  if (state.request) state.request.abort();
  clearResult();
  state.file = file;
  const request = new AbortController();
  state.request = request;
  at("working-text").textContent = `Restoring ${file.name || "the picture"}…`;
  at("working").hidden = false;
  say("Restoring the picture.");
  try {
    const reply = await send(file, request.signal);
    if (reply.ok) await show(file, await reply.json());
    else refuse(file, reply, await reply.json().catch(() => ({})));
  } catch (error) {
    if (error.name === "AbortError") {
      if (state.request === request) say("Cancelled.");
    } else {
      complain("busy", "The service cannot be reached.", "It may be restarting, or the network is down.", 0);
    }
  } finally {
    if (state.request === request) {
      state.request = null;
      at("working").hidden = true;
    }
  }
}

function send(file, signal) {
  const query = new URLSearchParams({ mode: at("mode").value, image: "true" });
  if (!SHOWN.has(file.type)) query.set("format", "png");
  const form = new FormData();
  form.append("file", file, file.name || "picture");
  const headers = { Accept: "application/json" };
  if (at("key").value) headers["X-API-Key"] = at("key").value;
  return fetch(`deblur?${query}`, { method: "POST", body: form, headers, signal });
}

function refuse(file, reply, problem) {
  const detail = problem.detail || `The service answered with status ${reply.status}.`;
  if (reply.status === 503 || reply.status === 504) {
    const wait = Number(reply.headers.get("Retry-After")) || 3;
    const title = problem.title || "The service is busy";
    const more = detail.startsWith(`${title}: `) ? detail.slice(title.length + 2) : detail; // not the same words twice
    complain("busy", title, more[0].toUpperCase() + more.slice(1), wait);
  } else if (reply.status === 401) {
    at("key-label").hidden = false;
    complain("refused", "This service asks for an API key.", "Enter it above, then try again.", 0);
    at("key").focus();
  } else {
    // The same file would be refused again, except where it was only too slow, or the fault is the service's.
    const useless = reply.status < 500 && reply.status !== 408;
    const said = (problem.title || "for an unknown reason").replace(/^The (body|picture) /, "it ").replace(/^The /, "the ");
    const happened = reply.status < 500 ? "was refused" : "could not be restored";
    complain("refused", `${file.name || "The picture"} ${happened}: ${said}`, detail, useless ? null : 0);
  }
}

// `waitSeconds` until it may be tried again; null: not at all.
function complain(kind, title, detail, waitSeconds) {
  at("problem").className = `message ${kind}`;
  at("problem-title").textContent = title.endsWith(".") ? title : `${title}.`;
  at("problem-detail").textContent = detail;
  at("problem").hidden = false;
  say("");
  const again = at("again");
  again.hidden = waitSeconds === null;
  let left = waitSeconds || 0;
  const tick = () => {
    again.disabled = left > 0;
    again.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left-- <= 0) clearInterval(state.countdown);
  };
  tick();
  if (waitSeconds > 0) state.countdown = setInterval(tick, 1000);
}

async function show(file, report) {
  const restored = await toBlob(report.image);
  const { width, height } = report.picture;
  const compare = at("compare");
  compare.classList.remove("single");
  compare.style.width = `min(100%, ${Math.max(width, 320)}px, calc(72vh * ${width} / ${height}))`;
  compare.style.aspectRatio = `${width} / ${height}`;
  at("after").src = objectUrl(restored);
  at("before").src = objectUrl(file);
  at("caption").textContent = "Drag over the picture, or use the arrow keys.";
  at("before").onerror = () => {
    compare.classList.add("single");
    at("caption").textContent = "This browser cannot show the original's format, so only the restored picture is here.";
  };
  move(50);
  const faces = listFaces(report);
  fillTable(faces);
  const verdict = describe(report, faces);
  at("verdict").textContent = verdict;
  const download = at("download");
  download.href = at("after").src;
  download.download = `${(file.name || "picture").replace(/\.[^.]*$/, "")}-restored.${EXTENSIONS[restored.type] || "png"}`;
  at("details").textContent = detailsOf(report, restored);
  at("result").hidden = false;
  drawBoxes(faces, width, height);
  at("result-title").focus({ preventScroll: true });
  at("result").scrollIntoView({ block: "start", behavior: "smooth" });
  say(verdict);
}

async function toBlob(dataUrl) {
  const [head, body] = dataUrl.split(",", 2);
  const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
  return new Blob([bytes], { type: head.slice(5, head.indexOf(";")) });
}

// The regions worked on, then faces that only the detector of one side knows.
function listFaces(report) {
  const faces = report.faces
    .filter((face) => face.before || face.after)
    .map((face) => ({ before: face.before, after: face.after, remark: face.kept_original }));
  const same = (a, b) => a && b && a.box.every((value, index) => value === b.box[index]);
  for (const found of report.faces_before) {
    if (!faces.some((face) => same(face.before, found))) faces.push({ before: found, after: null, remark: null });
  }
  for (const found of report.faces_after) {
    if (!faces.some((face) => same(face.after, found))) faces.push({ before: null, after: found, remark: null });
  }
  return faces;
}

function describe(report, faces) {
  const count = (number) => (number === 1 ? "1 face" : `${number} faces`);
  const [before, after] = [report.faces_before.length, report.faces_after.length];
  if (!before && !after) return "No face was found, before or after. The picture was looked at as a whole.";
  const kept = faces.filter((face) => face.remark).length;
  const confidence = `mean confidence ${percent(report.confidence_before)} before, ${percent(report.confidence_after)} after`;
  const tail = kept ? ` ${kept === 1 ? "One was" : `${kept} were`} left as it was.`.replace(/(\d) were left as it was/, "$1 were left as they were") : "";
  return `${count(before)} found before, ${after} after; ${confidence}.${tail}`;
}

const percent = (score) => `${(score * 100).toFixed(1)}%`;

function drawBoxes(faces, width, height) {
  const svg = at("boxes");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren();
  faces.forEach((face, index) => {
    const [x0, y0, x1, y1] = (face.after || face.before).box;
    const rect = document.createElementNS(SVG, "rect");
    const kind = face.before ? (face.after ? "" : "lost") : "gained";
    Object.entries({ x: x0, y: y0, width: x1 - x0, height: y1 - y0, class: kind }).forEach(([k, v]) => rect.setAttribute(k, v));
    svg.append(rect);
    if (faces.length > 1) {
      const size = (14 * width) / (at("compare").clientWidth || width); // 14 px on the screen
      const text = document.createElementNS(SVG, "text");
      Object.entries({ x: x0 + size / 4, y: y0 + size, "font-size": size }).forEach(([k, v]) => text.setAttribute(k, v));
      text.textContent = String(index + 1);
      svg.append(text);
    }
  });
}

function fillTable(faces) {
  const rows = faces.map((face, index) => {
    const change = face.before && face.after ? (face.after.score - face.before.score) * 100 : null;
    const sign = change === null ? "–" : `${change >= 0.05 ? "+" : change <= -0.05 ? "−" : "±"}${Math.abs(change).toFixed(1)}`;
    const found = (side) => (side ? percent(side.score) : "not found");
    const remark = face.remark ? `left as it was: ${face.remark}` : !face.before ? "found only after" : !face.after ? "found only before" : "restored";
    const row = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = String(index + 1);
    row.append(head);
    [found(face.before), found(face.after), sign, remark].forEach((text, column) => {
      const cell = document.createElement("td");
      if (column < 3) cell.className = "number";
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  });
  if (!rows.length) {
    const row = document.createElement("tr");
    const cell = document.createElement("td");
    cell.colSpan = 5;
    cell.textContent = "No face was found.";
    row.append(cell);
    rows.push(row);
  }
  at("faces").replaceChildren(...rows);
}

function detailsOf(report, restored) {
  const { width, height, warnings } = report.picture;
  const seconds = Object.values(report.timings_ms).reduce((sum, ms) => sum + ms, 0) / 1000;
  const parts = [`${width} × ${height} px`, `${Math.ceil(restored.size / 1024)} KiB`, `${seconds.toFixed(2)} s`, `model ${report.model.version}`];
  return [parts.join(" · "), ...warnings].join(". ");
}

function move(share) {
  at("slider").value = share;
  at("slider").setAttribute("aria-valuetext", `${share}% before, ${100 - share}% after`);
  at("compare").style.setProperty("--at", `${share}%`);
}

function take(files) {
  const file = [...(files || [])].find((one) => one.type.startsWith("image/") || /\.(hei[cf]|tiff?|avif)$/i.test(one.name)) || (files && files[0]);
  if (file) restore(file);
}

at("file").addEventListener("change", (event) => {
  take(event.target.files);
  event.target.value = ""; // the same file may be chosen again
});
at("form").addEventListener("submit", (event) => event.preventDefault());
at("mode").addEventListener("change", () => state.file && restore(state.file));
at("again").addEventListener("click", () => state.file && restore(state.file));
at("cancel").addEventListener("click", () => state.request && state.request.abort());
at("slider").addEventListener("input", (event) => move(Number(event.target.value)));
at("show-boxes").addEventListener("change", (event) => { at("boxes").style.display = event.target.checked ? "" : "none"; });
document.addEventListener("paste", (event) => take(event.clipboardData && event.clipboardData.files));
let depth = 0; // dragenter and dragleave also fire for children
document.addEventListener("dragenter", () => { depth += 1; at("drop").classList.add("over"); });
document.addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) at("drop").classList.remove("over"); });
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  at("drop").classList.remove("over");
  take(event.dataTransfer.files);
});
