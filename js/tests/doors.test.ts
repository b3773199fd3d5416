import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { makeDoors } from "../src/doors";
import { MockKernel } from "./mock";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const REFUSED = { refusal: "refused by the server", isUnknown: false };
const UNKNOWN = { refusal: "No such turn.", isUnknown: true };

/** Doors of a turn whose kernel replies so, or not at all. */
function doors(reply?: object, answer = REFUSED) {
  const kernel = new MockKernel();
  const done = reply ? Promise.resolve({ content: reply }) : new Promise(() => {});
  kernel.sendControlMessage.mockReturnValue({ done });
  const tryPost = vi.fn().mockResolvedValue(answer);
  const report = vi.fn();
  const target = () => ({ turn: "sub/s/turn_1", run: "s/1", kernel });
  const sent = () => kernel.sendControlMessage.mock.calls.map(([message]) => (message as { content: object }).content);
  return { made: makeDoors(target, { tryPost, timeline: vi.fn(), transcript: vi.fn() }, report), tryPost, report, sent };
}

const settle = (): Promise<unknown> => vi.advanceTimersByTimeAsync(1600);

test("a stop goes to the kernel alone when that runs the turn", async () => {
  const { made, tryPost, sent, report } = doors({ refusal: "" });
  made.stopAgent("ada", true);
  expect(sent()).toEqual([{ run: "s/1", immediate: true, agent: "ada" }]);
  await settle();
  expect(tryPost).not.toHaveBeenCalled();
  expect(report).toHaveBeenCalledWith("");
});

test.each([[undefined], [{ refusal: "No run named 's/1'.", is_unknown: true }]])("a stop that the kernel can't do goes to the server", async (reply) => {
  const { made, tryPost, report } = doors(reply);
  made.stopAgent("ada", true);
  await settle();
  expect(tryPost).toHaveBeenCalledWith("sub/s/turn_1", "stop", { immediate: true, agent: "ada", source: "widget" });
  expect(report).toHaveBeenCalledWith("refused by the server");
});

test("a text goes to the server alone, which has it said once", async () => {
  const { made, tryPost, sent, report } = doors({ refusal: "" });
  made.say("shorter");
  await settle();
  expect(tryPost.mock.calls).toEqual([["sub/s/turn_1", "say", { text: "shorter" }]]);
  expect(sent()).toEqual([]);
  expect(report).toHaveBeenCalledWith("refused by the server");
});

test("a text goes to the kernel when the server knows no such turn", async () => {
  const { made, sent, report } = doors({ refusal: "" }, UNKNOWN);
  made.say("shorter");
  await settle();
  expect(sent()).toEqual([{ run: "s/1", text: "shorter", id: expect.any(String) as string }]);
  expect(report).toHaveBeenCalledWith("");
});

test("a decision names its gate, and what the kernel refuses is told", async () => {
  const { made, sent, report } = doors({ refusal: "Run r1 waits at no gate." }, UNKNOWN);
  made.decide("deploy", false, "not on Friday");
  await settle();
  expect(sent()).toEqual([{ run: "s/1", gate: "deploy", message: "not on Friday", id: expect.any(String) as string }]);
  expect(report).toHaveBeenCalledWith("Run r1 waits at no gate.");
});

test.each([[undefined], [{ refusal: "No run named 's/1'.", is_unknown: true }]])("where neither knows of the turn, the server says so", async (reply) => {
  const { made, report } = doors(reply, UNKNOWN);
  made.decide("deploy", true, "");
  await settle();
  expect(report).toHaveBeenCalledWith("No such turn.");
});
