/** Client of the server extension under /nb-agents. */

import { ServerConnection } from "@jupyterlab/services";
import type { Change } from "./cell-changes";
import type { Claim, RevertPlan } from "./cells-api";
import type { WantedRun } from "./cell-runs";
import type { Status, Transcript } from "./panel-types";
import { trans } from "./text";

/** A live run or sweep, as listed by the server. Its texts are untrusted. */
export interface Run {
  /** The server's id of the turn or sweep. */
  readonly id: string;
  readonly task: string;
  /** Python's status, such as "awaiting". */
  readonly status: string;
  readonly state: Status;
  /** The state as text for users. */
  readonly says: string;
  /** Whether all agents wait for their providers. Missing for a sweep. */
  readonly waits?: boolean;
  readonly cost: number | null;
  /** For a single turn: the last turn that resumed it. */
  readonly resumed_in?: Pick<Turn, "turn" | "state"> | null;
  /** For a sweep: the numbers of all, complete and failed rows. */
  readonly rows?: { readonly total: number; readonly done: number; readonly failed: number };
}

/** A turn of a session, as described by its files. */
export interface Turn {
  readonly id: string;
  readonly turn: number;
  readonly task: string;
  readonly state: string;
  readonly is_live: boolean;
  /** For a rewind: the number of the old turn, and of the checkpoint's event; otherwise 0. */
  readonly rewinds?: number;
  readonly at?: number;
  /** Name of the notebook that started it, or "". */
  readonly notebook?: string;
  /** Unix seconds. */
  readonly updated_at: number | null;
  readonly cost: number | null;
  /** What to do instead of a resume if a conversation is too long for its model; otherwise "". */
  readonly instead?: string;
}

export interface Session {
  readonly id: string;
  readonly session: string;
  readonly turns: readonly Turn[];
  /** For a sweep, which has a session for each row instead of turns. */
  readonly sweep?: Run & { readonly is_live: boolean; readonly updated_at: number | null };
}

/** A problem found by a check of a file. */
export interface Finding {
  readonly severity: "error" | "warning" | "info";
  readonly what: string;
  /** Line number, starting with 1. */
  readonly line: number;
  readonly column: number;
}

/** An agent's call that wrote lines of a file. Its texts are untrusted. */
export interface Author {
  readonly agent: string;
  readonly call: string;
  readonly tool: string;
  readonly model: string;
  /** Unix seconds. */
  readonly at: number;
  readonly session: string;
  readonly turn: number;
  /** The beginning of what the agent was asked. */
  readonly prompt: string;
}

/** Who wrote each line of a text. */
export interface Authors {
  readonly calls: readonly Author[];
  /** For each line the position in `calls`, or null for a line that is from no agent. */
  readonly lines: readonly (number | null)[];
  /** Whether the text is the content of the file. */
  readonly is_current: boolean;
}

/** Choices for a new team. */
export interface Choices {
  /** The usable providers: where the key or server was found, and names of models. */
  readonly providers: readonly { readonly type: string; readonly where: string; readonly models: readonly string[] }[];
  /** All backend types, also those without a key. `found` is the variable that contains the key, or "". */
  readonly types: readonly {
    readonly type: string;
    readonly variables: readonly string[];
    readonly found: string;
    readonly base_url: string;
    readonly takes_address: boolean;
  }[];
  readonly tools: readonly { readonly key: string; readonly label: string }[];
}

/** An agent of a new team. Empty texts mean the default. */
export interface NewAgent {
  /** As type:model. */
  readonly model: string;
  readonly name: string;
  /** Its system message. */
  readonly role: string;
  /** The address of the model's server. */
  readonly base_url: string;
}

/** The content of a new file. */
export interface NewFile {
  readonly kind: "team" | "notebook";
  readonly agents: readonly NewAgent[];
  readonly tools: readonly string[];
}

/** An error message for the user. The cause is the HTTP status. */
export class Refused extends Error {}

/** The reply to a request about a turn or sweep. */
export interface Answer {
  /** An error message, or "". */
  readonly refusal: string;
  /** Whether the server does not know the turn or sweep. */
  readonly isUnknown: boolean;
  /** Whether the server, or a proxy in front of it, may answer later. */
  readonly isUnreachable?: boolean;
}

/** HTTP status for a session that this user has neither made nor trusted. */
export const NOT_YOURS = 428;

/** Call `act`. If the session needs trust, ask the user, and call `act` again with it. */
export async function withTrust<T>(
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
  /**
   * @param userName Returns the name with which the user has signed in, or "".
   */
  constructor(
    private readonly settings: ServerConnection.ISettings,
    readonly userName: () => string = () => "",
  ) {}

  /** List the user's live runs and sweeps. Undefined if the server does not have the extension. */
  async runs(): Promise<readonly Run[] | undefined> {
    const response = await this.request("runs", {});
    if (response.status === 404) return undefined;
    if (!response.ok) throw new Error(`status ${response.status}`);
    return (await response.json()) as Run[];
  }

  /** List the sessions below the server's root and in these folders of notebooks. */
  sessions(folders: readonly string[]): Promise<readonly Session[]> {
    const query = new URLSearchParams(folders.map((folder) => ["folder", folder]));
    return this.json(`sessions?${query}`);
  }

  /** List the sessions of a sweep's rows, or the most recently used of many. */
  rowsOf(sweep: string): Promise<readonly Session[]> {
    return this.json(`sessions?${new URLSearchParams({ sweep })}`);
  }

  /** Get the state of a turn or sweep. */
  run(id: string): Promise<Run> {
    return this.json(`runs/${address(id)}`);
  }

  /** Resume an incomplete turn. Resolves to the new turn. */
  resume(id: string, trust: boolean): Promise<{ readonly id: string }> {
    return this.json(`runs/${address(id)}/resume`, "POST", { trust });
  }

  /** Rewind to a checkpoint, or preview the rewind. Resolves to the new turn, or to the preview. */
  rewind(id: string, body: object): Promise<unknown> {
    return this.json(`runs/${address(id)}/rewind`, "POST", body);
  }

  /** Continue a session with a new task. Resolves to the new turn. */
  continueSession(id: string, task: string, trust: boolean): Promise<{ readonly id: string }> {
    return this.json(`sessions/${address(id)}/continue`, "POST", { task, trust });
  }

  async renameSession(id: string, name: string): Promise<void> {
    await this.json(`sessions/${address(id)}/rename`, "POST", { name });
  }

  async deleteSession(id: string): Promise<void> {
    await this.ask(`sessions/${address(id)}`, "DELETE");
  }

  /** Download a session as a zip file. */
  async exportSession(id: string): Promise<Blob> {
    return (await this.ask(`sessions/${address(id)}/export`)).blob();
  }

  /** Get the transcript of an agent after a position of the turn's journal. */
  transcript(id: string, agent: string, after: number): Promise<Transcript> {
    return this.json(`runs/${address(id)}/transcript?${new URLSearchParams({ agent, after: String(after) })}`);
  }

  /**
   * List the changes of cells that a turn's agents have proposed.
   *
   * @param since Unix seconds. Accepted changes that are newer have their texts, like open ones.
   */
  async proposals(id: string, since?: number): Promise<readonly Change[]> {
    const body = since === undefined ? {} : { since };
    return (await this.json<{ readonly proposals: readonly Change[] }>(`runs/${address(id)}/cells`, "POST", body)).proposals;
  }

  /** Claim a proposal before it is decided. */
  claim(id: string, body: object): Promise<Claim> {
    return this.json(`runs/${address(id)}/cells_claim`, "POST", body);
  }

  /** Ask how to take back the changes of a rewind. */
  revertPlan(id: string, body: object): Promise<RevertPlan> {
    return this.json(`runs/${address(id)}/cells_revert`, "POST", body);
  }

  /** List a turn's open requests to run a cell, each with the approved source. */
  async cellRuns(id: string): Promise<readonly WantedRun[]> {
    return (await this.json<{ readonly runs: readonly WantedRun[] }>(`runs/${address(id)}/cells`, "POST", {})).runs;
  }

  /** Send a verb to a turn. Resolves to whether it had an effect. */
  async hasChanged(id: string, action: string, body: object): Promise<boolean> {
    try {
      return (await this.json<{ readonly changed: boolean }>(`runs/${address(id)}/${action}`, "POST", body)).changed;
    } catch (error) {
      if (error instanceof Refused) return false;
      throw error;
    }
  }

  /** Get the timeline of a turn so far, as HTML. */
  async timeline(id: string): Promise<string> {
    return (await this.json<{ readonly html: string }>(`runs/${address(id)}/timeline`)).html;
  }

  /** Check the text of a team file or recipe without running it. */
  async check(text: string, file: string): Promise<readonly Finding[]> {
    return (await this.json<{ readonly findings: readonly Finding[] }>("check", "POST", { text, file })).findings;
  }

  /** Ask who wrote each line of a text in the editor of a file. */
  authors(path: string, text: string): Promise<Authors> {
    return this.json("authors", "POST", { path, text });
  }

  /** Get the choices for a new team. */
  choices(): Promise<Choices> {
    return this.json("new");
  }

  /** Get the text of a new file, without writing it. */
  newFile(wanted: NewFile): Promise<{ readonly text: string }> {
    return this.json("new", "POST", wanted);
  }

  /** Open the stream of these turns and sweeps. */
  view(ids: readonly string[], signal: AbortSignal): Promise<Response> {
    const query = new URLSearchParams(ids.map((id) => ["id", id]));
    return this.request(`view?${query}`, { signal });
  }

  /**
   * Send a verb to a turn or sweep. Resolves to an error message, or to "". A stop after the end (409) is no
   * error.
   */
  async post(id: string, action: string, body: object): Promise<string> {
    return (await this.tryPost(id, action, body)).refusal;
  }

  /** Like `post`, but the reply also tells whether the server knows the turn or sweep. */
  async tryPost(id: string, action: string, body: object): Promise<Answer> {
    try {
      await this.ask(`runs/${address(id)}/${action}`, "POST", body);
      return { refusal: "", isUnknown: false, isUnreachable: false };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const isOver = action === "stop" && error.cause === 409;
      const isUnreachable = error.cause === undefined || [502, 503, 504].includes(Number(error.cause));
      return { refusal: isOver ? "" : error.message, isUnknown: error.cause === 404, isUnreachable };
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
      throw new Refused(trans.__("The Jupyter server can't be reached."));
    }
    if (response.ok) return response;
    const refusal = (await response.json().catch(() => ({}))) as { message?: string };
    throw new Refused(refusal.message ?? wordless(response), { cause: response.status });
  }

  private request(path: string, init: RequestInit): Promise<Response> {
    return ServerConnection.makeRequest(`${this.settings.baseUrl}nb-agents/${path}`, init, this.settings);
  }
}

/** Message for an error without one. Errors of the extension have a message, so a 404 is Jupyter's. */
function wordless({ status, statusText }: Response): string {
  return status === 404
    ? trans.__("This Jupyter server has no nb_agents: install it in JupyterLab's environment, or start the notebook's kernel.")
    : statusText;
}

/** Encode the id of a turn, sweep or session for a URL. */
function address(id: string): string {
  const names = id.split("/");
  // The browser resolves `..` in a URL, which would lead to another id.
  if (names.some((name) => name === "." || name === "..")) throw new Refused(trans.__("No run %1.", id));
  return names.map(encodeURIComponent).join("/");
}

/**
 * Return the server's id of a turn or sweep: its directory relative to the server's root, or an absolute path.
 *
 * @param path The path in the bundle: relative to the notebook's folder, or absolute.
 * @param notebook The notebook's path.
 */
export function serverId(path: string, notebook: string): string {
  const slashed = path.replaceAll("\\", "/");
  if (/^(\/|[A-Za-z]:\/)/.test(slashed)) return slashed;
  const folder = notebook.split("/").slice(0, -1);
  return [...folder, slashed].join("/").replace(/^\/+/, "");
}
