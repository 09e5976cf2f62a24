// uPlot is a script that makes a global class, for page_types.py.
declare class uPlot {
  static tzDate(date: Date, zone: string): Date;
  constructor(options: object, data: unknown[], place: HTMLElement);
  [name: string]: any;
}
interface Window { uPlot?: typeof uPlot }
