/** The server extension under /nb-agents, as the plugin uses it. */

import { ServerConnection } from "@jupyterlab/services";
import type { Status, Transcript } from "./panel-types";

/** A live run or sweep, as the server lists it. Its texts are a model's or a person's. */
export interface Run {
  /** The turn, or the sweep, as the server calls it. */
  readonly id: string;
  readonly task: string;
  /** Python's word, such as "awaiting". */
  readonly status: string;
  readonly state: Status;
  /** How it stands, for a person. */
  readonly says: string;
  readonly cost: number | null;
  /** Of a sweep: how many rows it has, and how many of them ended how. */
  readonly rows?: { readonly total: number; readonly done: number; readonly failed: number };
}

/** A turn of a session, by what its files say. */
export interface Turn {
  readonly id: string;
  readonly turn: number;
  readonly task: string;
  readonly state: string;
  readonly is_live: boolean;
  /** Of a turn that went back: the number of the turn, and the event up to which that counts; else 0. */
  readonly rewinds?: number;
  readonly at?: number;
  /** Name of the notebook that it was begun in, or "". */
  readonly notebook?: string;
  /** Unix seconds. */
  readonly updated_at: number | null;
  readonly cost: number | null;
}

export interface Session {
  readonly id: string;
  readonly session: string;
  readonly turns: readonly Turn[];
  /** Of a sweep, which has a session for each row in the place of turns. */
  readonly sweep?: Run & { readonly is_live: boolean; readonly updated_at: number | null };
}

/** Something that a check found in a text. */
export interface Finding {
  readonly severity: "error" | "warning" | "info";
  readonly what: string;
  /** From 1. */
  readonly line: number;
  readonly column: number;
}

/** What a new team can be made of. */
export interface Choices {
  /** Those that can be used: where that was found, and names of their models. */
  readonly providers: readonly { readonly type: string; readonly where: string; readonly models: readonly string[] }[];
  readonly tools: readonly { readonly key: string; readonly label: string }[];
}

/** What a new file is to be. */
export interface NewFile {
  readonly kind: "team" | "notebook";
  /** As type:model, an agent for each. */
  readonly models: readonly string[];
  readonly tools: readonly string[];
}

/** Why something was refused, in a sentence for the person; its cause is the status. */
export class Refused extends Error {}

/** Of what is asked of a turn or a sweep. */
export interface Answer {
  /** Why it was refused, or "". */
  readonly refusal: string;
  /** Whether the server knows of none: nothing was done. */
  readonly isUnknown: boolean;
}

/** The status of a session that this user has neither made nor trusted. */
export const NOT_YOURS = 428;

/** Do it; for a session that is not this user's, ask whether it is trusted, and if so do it once more. */
export async function trusting<T>(
  act: (trust: boolean) => Promise<T>,
  ask: (question: string) => Promise<boolean>,
): Promise<T | undefined> {
  try {
    return await act(false);
  } catch (error) {
    if (!(error instanceof Refused) || error.cause !== NOT_YOURS) throw error;
    return (await ask(error.message)) ? act(true) : undefined;
  }
}

export class Api {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  /** List the live runs and sweeps of this user; nothing where the server has no such extension. */
  async runs(): Promise<readonly Run[] | undefined> {
    const response = await this.request("runs", {});
    if (response.status === 404) return undefined;
    if (!response.ok) throw new Error(`status ${response.status}`);
    return (await response.json()) as Run[];
  }

  /** List the sessions below the server's root and beside the notebooks of these folders. */
  sessions(folders: readonly string[]): Promise<readonly Session[]> {
    const query = new URLSearchParams(folders.map((folder) => ["folder", folder]));
    return this.json(`sessions?${query}`);
  }

  /** List the sessions of a sweep's rows, of many those that were used last. */
  rowsOf(sweep: string): Promise<readonly Session[]> {
    return this.json(`sessions?${new URLSearchParams({ sweep })}`);
  }

  /** Read how a turn or a sweep stands. */
  run(id: string): Promise<Run> {
    return this.json(`runs/${address(id)}`);
  }

  /** Go on with an incomplete turn; resolves to the turn that does. */
  resume(id: string, trust: boolean): Promise<{ readonly id: string }> {
    return this.json(`runs/${address(id)}/resume`, "POST", { trust });
  }

  /** Go back to a point of a turn, or read what that would do; resolves to the turn that goes on, or to that. */
  rewind(id: string, body: object): Promise<unknown> {
    return this.json(`runs/${address(id)}/rewind`, "POST", body);
  }

  /** Ask the team of a session something new; resolves to the turn that answers it. */
  continueSession(id: string, task: string, trust: boolean): Promise<{ readonly id: string }> {
    return this.json(`sessions/${address(id)}/continue`, "POST", { task, trust });
  }

  async renameSession(id: string, name: string): Promise<void> {
    await this.json(`sessions/${address(id)}/rename`, "POST", { name });
  }

  async deleteSession(id: string): Promise<void> {
    await this.ask(`sessions/${address(id)}`, "DELETE");
  }

  /** Fetch a session as a zip. */
  async exportSession(id: string): Promise<Blob> {
    return (await this.ask(`sessions/${address(id)}/export`)).blob();
  }

  /** Read what an agent wrote and did, from a place in the turn's journal on. */
  transcript(id: string, agent: string, after: number): Promise<Transcript> {
    return this.json(`runs/${address(id)}/transcript?${new URLSearchParams({ agent, after: String(after) })}`);
  }

  /** Read the picture of what has happened in a turn so far, which is HTML. */
  async timeline(id: string): Promise<string> {
    return (await this.json<{ readonly html: string }>(`runs/${address(id)}/timeline`)).html;
  }

  /** Check the text of a team file or a recipe, which is not run. */
  async check(text: string, file: string): Promise<readonly Finding[]> {
    return (await this.json<{ readonly findings: readonly Finding[] }>("check", "POST", { text, file })).findings;
  }

  /** Read what a new team can be made of. */
  choices(): Promise<Choices> {
    return this.json("new");
  }

  /** Make the text of a new file, which is not written. */
  newFile(wanted: NewFile): Promise<{ readonly text: string }> {
    return this.json("new", "POST", wanted);
  }

  /** Open the stream of these turns and sweeps. */
  view(ids: readonly string[], signal: AbortSignal): Promise<Response> {
    const query = new URLSearchParams(ids.map((id) => ["id", id]));
    return this.request(`view?${query}`, { signal });
  }

  /**
   * Ask something of a turn or a sweep; resolves to why it was refused, or to "". A stop that comes after the
   * end (409) has what it asked for.
   */
  async post(id: string, action: string, body: object): Promise<string> {
    return (await this.tryPost(id, action, body)).refusal;
  }

  /** Ask as `post` does; the answer says, too, whether the server knows of such a turn or sweep. */
  async tryPost(id: string, action: string, body: object): Promise<Answer> {
    try {
      await this.ask(`runs/${address(id)}/${action}`, "POST", body);
      return { refusal: "", isUnknown: false };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const isOver = action === "stop" && error.cause === 409;
      return { refusal: isOver ? "" : error.message, isUnknown: error.cause === 404 };
    }
  }

  private async json<T>(path: string, method = "GET", body?: object): Promise<T> {
    return (await (await this.ask(path, method, body)).json()) as T;
  }

  /** @throws Refused */
  private async ask(path: string, method = "GET", body?: object): Promise<Response> {
    const init = body ? { method, body: JSON.stringify(body) } : { method };
    let response: Response;
    try {
      response = await this.request(path, init);
    } catch {
      throw new Refused("The Jupyter server can't be reached.");
    }
    if (response.ok) return response;
    const refusal = (await response.json().catch(() => ({}))) as { message?: string };
    throw new Refused(refusal.message ?? wordless(response), { cause: response.status });
  }

  private request(path: string, init: RequestInit): Promise<Response> {
    return ServerConnection.makeRequest(`${this.settings.baseUrl}nb-agents/${path}`, init, this.settings);
  }
}

/** Why, of a refusal without a message: ours have one, so a 404 is the Jupyter server's own. */
function wordless({ status, statusText }: Response): string {
  return status === 404
    ? "This Jupyter server has no nb_agents: install it beside JupyterLab, or start the notebook's kernel."
    : statusText;
}

/** Write the name of a turn, sweep or session as a part of an address. */
function address(id: string): string {
  const names = id.split("/");
  // The browser takes `..` out of an address, which would then be another one.
  if (names.some((name) => name === "." || name === "..")) throw new Refused(`No run ${id}.`);
  return names.map(encodeURIComponent).join("/");
}

/**
 * Name a turn or a sweep by its directory from the server's root on; a whole path stays as it is.
 *
 * @param path As its bundle has it: from the notebook's folder on, or whole.
 * @param notebook The notebook's path.
 */
export function serverId(path: string, notebook: string): string {
  const slashed = path.replaceAll("\\", "/");
  if (/^(\/|[A-Za-z]:\/)/.test(slashed)) return slashed;
  const folder = notebook.split("/").slice(0, -1);
  return [...folder, slashed].join("/").replace(/^\/+/, "");
}
