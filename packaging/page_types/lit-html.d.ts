// What the page uses of lit-html, for page_types.py.
export interface TemplateResult { readonly strings: TemplateStringsArray }
export const nothing: unique symbol;
export function html(strings: TemplateStringsArray, ...values: unknown[]): TemplateResult;
export function svg(strings: TemplateStringsArray, ...values: unknown[]): TemplateResult;
export function render(value: unknown, place: HTMLElement): unknown;
