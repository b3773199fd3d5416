import { expect, test, vi } from "vitest";
import { Api, serverId, withTrust } from "../src/api";

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

test("the id of a turn can't lead to another URL", async () => {
  for (const id of ["../api/kernels/turn_1", "s/./turn_1", ".."]) {
    expect(await api.post(id, "stop", {})).toMatch("No run");
  }
  expect(makeRequest).not.toHaveBeenCalled();
});

test("a request goes to the turn's URL, and an error is reported", async () => {
  makeRequest.mockResolvedValueOnce(Response.json({ message: "It is over." }, { status: 409 }));
  expect(await api.post("a b/s?/turn_1", "say", { text: "later" })).toBe("It is over.");
  const [url, init] = makeRequest.mock.calls[0] as [string, RequestInit];
  expect(url).toBe("http://127.0.0.1/ada/nb-agents/runs/a%20b/s%3F/turn_1/say");
  expect(init.body).toBe('{"text":"later"}');
});

test.each([[404, true], [409, false]])("status %i tells whether the server knows the turn", async (status, isUnknown) => {
  makeRequest.mockResolvedValueOnce(Response.json({ message: "No." }, { status }));
  expect(await api.tryPost("s/turn_1", "say", { text: "later" })).toEqual({ refusal: "No.", isUnknown, isUnreachable: false });
});

test("a stop after the end is no error", async () => {
  makeRequest.mockResolvedValueOnce(Response.json({ message: "It is over." }, { status: 409 }));
  expect(await api.post("s/turn_1", "stop", {})).toBe("");
});

test("an unreachable server is reported", async () => {
  makeRequest.mockRejectedValueOnce(new TypeError("network"));
  expect(await api.post("s/turn_1", "stop", {})).toMatch("can't be reached");
});

test("a missing extension is reported as such", async () => {
  makeRequest.mockResolvedValueOnce(new Response("<html>", { status: 404, statusText: "Not Found" }));
  expect(await api.post("s/turn_1", "say", { text: "later" })).toMatch("has no nb_agents");
});

test("a session's requests go to its URL, and an error has its message", async () => {
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

const notYours = (): Response => Response.json({ message: "It was not created by you." }, { status: 428 });
const sent = (): unknown => JSON.parse(String((makeRequest.mock.lastCall as [string, RequestInit])[1].body));

test.each([true, false])("an untrusted session is continued if the user answers %s", async (answer) => {
  makeRequest.mockReset().mockImplementationOnce(notYours);
  if (answer) makeRequest.mockImplementationOnce(() => Response.json({ id: "s/turn_2" }, { status: 202 }));
  const ask = vi.fn().mockResolvedValue(answer);
  const begun = await withTrust((trust) => api.resume("s/turn_1", trust), ask);
  expect(ask).toHaveBeenCalledExactlyOnceWith("It was not created by you.");
  expect(begun).toEqual(answer ? { id: "s/turn_2" } : undefined);
  expect(makeRequest).toHaveBeenCalledTimes(answer ? 2 : 1);
  expect(sent()).toEqual({ trust: answer });
});

test("the user is not asked for trust in other cases", async () => {
  const ask = vi.fn();
  makeRequest.mockReset().mockImplementationOnce(() => Response.json({ id: "s/turn_2" }, { status: 202 }));
  expect(await withTrust((trust) => api.continueSession("s", "Why?", trust), ask)).toEqual({ id: "s/turn_2" });
  makeRequest.mockImplementationOnce(() => Response.json({ message: "It is over." }, { status: 409 }));
  await expect(withTrust((trust) => api.resume("s/turn_1", trust), ask)).rejects.toThrow("It is over.");
  expect(ask).not.toHaveBeenCalled();
});
