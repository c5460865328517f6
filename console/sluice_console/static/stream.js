// NDJSON while it arrives: lines are parsed as they come, and given on once per frame.
import { ApiProblem, request } from "./lib.js";

export async function readLines(path, signal, onLines) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", lines = [], frame = 0, ended = false;
  const flush = () => { frame = 0; if (lines.length && !signal.aborted) { const some = lines; lines = []; onLines(some); } };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part) continue;
      const line = JSON.parse(part);
      if (line.problem) { flush(); throw new ApiProblem(line.problem.status, line.problem.title, line.problem.detail); }
      if (line.summary) ended = true;
      lines.push(line);
    }
    if (lines.length && !frame) frame = requestAnimationFrame(flush);
  }
  cancelAnimationFrame(frame);
  flush();
  if (!ended) throw new ApiProblem(0, "The response is incomplete", "The connection ended early. Run the search again.");
}
