import { expect, test, vi } from "vitest";
import { Api, serverId, trusting } from "../src/api";

const makeRequest = vi.hoisted(() => vi.fn());
vi.mock("@jupyterlab/services", () => ({ ServerConnection: { makeRequest } }));

const api = new Api({ baseUrl: "http://127.0.0.1/ada/" } as never);

test.each([
  [".nb_agents/sessions/s/turn_1", "report.ipynb", ".nb_agents/sessions/s/turn_1"],
  [".nb_agents/sessions/s/turn_1", "a/b/report.ipynb", "a/b/.nb_agents/sessions/s/turn_1"],
  ["/data/sessions/s/turn_1", "a/report.ipynb", "/data/sessions/s/turn_1"],
  ["C:\\data\\s\\turn_1", "a/report.ipynb", "C:/data/s/turn_1"],
])("a turn at %s shown in %s is %s to the server", (path, notebook, id) => {
  expect(serverId(path, notebook)).toBe(id);
});

test("a name of a turn leads to no other address", async () => {
  for (const id of ["../api/kernels/turn_1", "s/./turn_1", ".."]) {
    expect(await api.post(id, "stop", {})).toMatch("No run");
  }
  expect(makeRequest).not.toHaveBeenCalled();
});

test("what is asked goes to the turn's own address, and a refusal is told", async () => {
  makeRequest.mockResolvedValueOnce(Response.json({ message: "It is over." }, { status: 409 }));
  expect(await api.post("a b/s?/turn_1", "say", { text: "later" })).toBe("It is over.");
  const [url, init] = makeRequest.mock.calls[0] as [string, RequestInit];
  expect(url).toBe("http://127.0.0.1/ada/nb-agents/runs/a%20b/s%3F/turn_1/say");
  expect(init.body).toBe('{"text":"later"}');
});

test.each([[404, true], [409, false]])("an answer of status %i says whether the server knows of the turn", async (status, isUnknown) => {
  makeRequest.mockResolvedValueOnce(Response.json({ message: "No." }, { status }));
  expect(await api.tryPost("s/turn_1", "say", { text: "later" })).toEqual({ refusal: "No.", isUnknown });
});

test("a stop that comes after the end has what it asked for", async () => {
  makeRequest.mockResolvedValueOnce(Response.json({ message: "It is over." }, { status: 409 }));
  expect(await api.post("s/turn_1", "stop", {})).toBe("");
});

test("a server that is away is told", async () => {
  makeRequest.mockRejectedValueOnce(new TypeError("network"));
  expect(await api.post("s/turn_1", "stop", {})).toMatch("can't be reached");
});

test("a server without the extension is told as such, and not as what it could not find", async () => {
  makeRequest.mockResolvedValueOnce(new Response("<html>", { status: 404, statusText: "Not Found" }));
  expect(await api.post("s/turn_1", "say", { text: "later" })).toMatch("has no nb_agents");
});

test("a session's own requests go to its address, and a refusal is an error with its words", async () => {
  makeRequest.mockResolvedValueOnce(new Response(null, { status: 204 }));
  await api.deleteSession("a b/s");
  const [url, init] = makeRequest.mock.lastCall as [string, RequestInit];
  expect([url, init.method]).toEqual(["http://127.0.0.1/ada/nb-agents/sessions/a%20b/s", "DELETE"]);
  makeRequest.mockResolvedValueOnce(Response.json({ message: "A turn is live." }, { status: 409 }));
  await expect(api.renameSession("s", "t")).rejects.toThrow("A turn is live.");
  await expect(api.deleteSession("../api/kernels")).rejects.toThrow("No run");
});

test("a server without the extension lists no runs", async () => {
  makeRequest.mockResolvedValueOnce(new Response("", { status: 404 }));
  expect(await api.runs()).toBeUndefined();
});

const notYours = (): Response => Response.json({ message: "It was not made by you." }, { status: 428 });
const sent = (): unknown => JSON.parse(String((makeRequest.mock.lastCall as [string, RequestInit])[1].body));

test.each([true, false])("a session that is not one's own is gone on with when its reader says %s", async (answer) => {
  makeRequest.mockReset().mockImplementationOnce(notYours);
  if (answer) makeRequest.mockImplementationOnce(() => Response.json({ id: "s/turn_2" }, { status: 202 }));
  const ask = vi.fn().mockResolvedValue(answer);
  const begun = await trusting((trust) => api.resume("s/turn_1", trust), ask);
  expect(ask).toHaveBeenCalledExactlyOnceWith("It was not made by you.");
  expect(begun).toEqual(answer ? { id: "s/turn_2" } : undefined);
  expect(makeRequest).toHaveBeenCalledTimes(answer ? 2 : 1);
  expect(sent()).toEqual({ trust: answer });
});

test("of one's own session, and of any other refusal, nothing is asked", async () => {
  const ask = vi.fn();
  makeRequest.mockReset().mockImplementationOnce(() => Response.json({ id: "s/turn_2" }, { status: 202 }));
  expect(await trusting((trust) => api.continueSession("s", "Why?", trust), ask)).toEqual({ id: "s/turn_2" });
  makeRequest.mockImplementationOnce(() => Response.json({ message: "It is over." }, { status: 409 }));
  await expect(trusting((trust) => api.resume("s/turn_1", trust), ask)).rejects.toThrow("It is over.");
  expect(ask).not.toHaveBeenCalled();
});
